-- The tables of a catalog. Run once, under a lock, in one transaction.
-- Functions carry the number of the schema in their name, so that programs of two versions can work side by side.

CREATE TABLE stoker_meta (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    cluster bytea NOT NULL,
    schema integer NOT NULL
);

CREATE TABLE stoker_row (
    key bytea PRIMARY KEY,
    value bytea NOT NULL,
    seq bigint NOT NULL
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.1);

-- Values are packed already; trying to compress them again only costs time.
ALTER TABLE stoker_row ALTER COLUMN value SET STORAGE EXTERNAL;

CREATE SEQUENCE stoker_seq AS bigint MINVALUE 1 CACHE 1;

-- The bytes of a counter in the other order: stored little-endian, but SQL knows only big-endian.
CREATE FUNCTION stoker_swap_1(bytes bytea) RETURNS bytea LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT substr(bytes, 8, 1) || substr(bytes, 7, 1) || substr(bytes, 6, 1) || substr(bytes, 5, 1)
        || substr(bytes, 4, 1) || substr(bytes, 3, 1) || substr(bytes, 2, 1) || substr(bytes, 1, 1)
$$;

CREATE FUNCTION stoker_sum_1(stored bytea, delta bigint) RETURNS bytea LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    IF octet_length(stored) <> 8 THEN
        RAISE EXCEPTION 'cannot add to a value of % bytes; a counter has 8', octet_length(stored)
            USING ERRCODE = 'STK01';
    END IF;
    RETURN stoker_swap_1(int8send(('x' || encode(stoker_swap_1(stored), 'hex'))::bit(64)::bigint + delta));
END
$$;

-- Runs one commit. Gives its number, or 0 without `writes`, or -N if its check N does not hold (from 1).
-- Kinds of checks: 0 absent, 1 present, 2 number, 3 value, 4 at most `number` rows in `key`..`other`.
CREATE FUNCTION stoker_commit_1(
    check_kinds smallint[], check_keys bytea[], check_others bytea[], check_numbers bigint[],
    range_starts bytea[], range_ends bytea[], deletes bytea[],
    put_keys bytea[], put_values bytea[], add_keys bytea[], add_deltas bigint[], writes boolean
) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    failed bigint;
    span record;
    found_rows bigint;
    commit_seq bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'serializable' THEN
        RAISE EXCEPTION 'a commit must run serializable' USING ERRCODE = 'STK02';
    END IF;
    IF cardinality(check_kinds) > 0 THEN
        SELECT min(c.at) INTO failed
        FROM unnest(check_kinds, check_keys, check_others, check_numbers)
            WITH ORDINALITY AS c(kind, key, other, number, at)
        LEFT JOIN stoker_row r ON r.key = c.key
        WHERE c.kind < 4 AND NOT coalesce(
            CASE c.kind
                WHEN 0 THEN r.key IS NULL
                WHEN 1 THEN r.key IS NOT NULL
                WHEN 2 THEN r.seq = c.number
                WHEN 3 THEN r.value = c.other
            END, false);
        FOR span IN
            SELECT c.key, c.other, c.number, c.at
            FROM unnest(check_kinds, check_keys, check_others, check_numbers)
                WITH ORDINALITY AS c(kind, key, other, number, at)
            WHERE c.kind = 4 AND (failed IS NULL OR c.at < failed)
            ORDER BY c.at
        LOOP
            SELECT count(*) INTO found_rows FROM (
                SELECT FROM stoker_row r WHERE r.key >= span.key AND r.key < span.other LIMIT span.number + 1
            ) counted;
            IF found_rows > span.number THEN
                failed := span.at;
                EXIT;
            END IF;
        END LOOP;
        IF failed IS NOT NULL THEN
            RETURN -failed;
        END IF;
    END IF;
    IF NOT writes THEN
        RETURN 0;
    END IF;
    commit_seq := nextval('stoker_seq');
    IF cardinality(range_starts) > 0 THEN
        DELETE FROM stoker_row r USING unnest(range_starts, range_ends) AS d(first, past)
        WHERE r.key >= d.first AND r.key < d.past;
    END IF;
    IF cardinality(deletes) > 0 THEN
        DELETE FROM stoker_row r WHERE r.key = ANY (deletes);
    END IF;
    IF cardinality(put_keys) > 0 THEN
        INSERT INTO stoker_row AS r (key, value, seq)
        SELECT p.key, p.value, commit_seq FROM unnest(put_keys, put_values) AS p(key, value)
        ON CONFLICT (key) DO UPDATE SET value = excluded.value, seq = excluded.seq;
    END IF;
    IF cardinality(add_keys) > 0 THEN
        INSERT INTO stoker_row AS r (key, value, seq)
        SELECT a.key, stoker_swap_1(int8send(a.delta)), commit_seq FROM unnest(add_keys, add_deltas) AS a(key, delta)
        ON CONFLICT (key) DO UPDATE SET
            value = stoker_sum_1(r.value, ('x' || encode(stoker_swap_1(excluded.value), 'hex'))::bit(64)::bigint),
            seq = excluded.seq;
    END IF;
    -- Nothing was there to change. The number was drawn all the same, so it has to become durable.
    IF pg_current_xact_id_if_assigned() IS NULL THEN
        PERFORM pg_logical_emit_message(true, 'stoker', '');
    END IF;
    RETURN commit_seq;
END
$$;
