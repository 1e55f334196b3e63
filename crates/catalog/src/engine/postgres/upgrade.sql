-- Makes a database of schema 1 ready for this version. Run once, under a lock, in one transaction, before `commit.sql`.
-- Programs that only know schema 1 go on until a program of this version finds none of them connected and switches.

-- The commit of schema 1 as it was, but that it ends once the database was switched, also if it began before.
-- Runs one commit. Gives its number, or 0 without `writes`, or -N if its check N does not hold (from 1).
-- Kinds of checks: 0 absent, 1 present, 2 number, 3 value, 4 at most `number` rows in `key`..`other`.
CREATE OR REPLACE FUNCTION stoker_commit_1(
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
    PERFORM FROM stoker_meta WHERE schema = 1 FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the database is used by a newer version of Stoker; update the program' USING ERRCODE = '42883';
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

-- Switches to schema 2 if no session of an older program is connected. Gives the schema that is used from now on. A session
-- that is not known to be of this version counts as old if it calls itself what ours call themselves.
CREATE FUNCTION stoker_switch_2(application text) RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    used integer;
BEGIN
    -- Waits for the commits of schema 1 that are under way.
    SELECT m.schema INTO used FROM stoker_meta m FOR UPDATE;
    IF used <> 1 THEN
        RETURN used;
    END IF;
    IF EXISTS (
        SELECT FROM pg_stat_activity a
        WHERE a.datname = current_database() AND a.usename = current_user AND a.pid <> pg_backend_pid()
            AND a.application_name = application AND NOT EXISTS (
                SELECT FROM pg_locks l
                WHERE l.pid = a.pid AND l.locktype = 'advisory' AND l.classid = 1937010539 AND l.objid = 2 AND l.objsubid = 1)
    ) THEN
        RETURN used;
    END IF;
    UPDATE stoker_meta SET schema = 2;
    RETURN 2;
END
$$;
