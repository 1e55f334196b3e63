-- Commits of schema 2. Run under a lock, in one transaction: when the tables are made, and once more in a database of an earlier release,
-- whose function knew less. Older programs use the newer function as they used theirs.

-- What became of the last transaction of each lane of each program, for those whose answer was lost.
CREATE TABLE IF NOT EXISTS stoker_lane (
    lane bigint PRIMARY KEY,
    batch bigint NOT NULL,
    results bigint[] NOT NULL,
    at timestamptz NOT NULL
) WITH (fillfactor = 50);

-- A counter is stored little-endian, but SQL knows only the other order. All operators on bits bind alike.
CREATE OR REPLACE FUNCTION stoker_counter_2(sum bigint) RETURNS bytea LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    RETURN int8send(
        (sum << 56) | ((sum & 65280) << 40) | ((sum & 16711680) << 24) | ((sum & 4278190080) << 8)
        | ((sum >> 8) & 4278190080) | ((sum >> 24) & 16711680) | ((sum >> 40) & 65280) | ((sum >> 56) & 255));
END
$$;

CREATE OR REPLACE FUNCTION stoker_sum_2(stored bytea, more bytea) RETURNS bytea LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    IF octet_length(stored) <> 8 THEN
        RAISE EXCEPTION 'cannot add to a value of % bytes; a counter has 8', octet_length(stored)
            USING ERRCODE = 'STK01';
    END IF;
    RETURN stoker_counter_2(
        (get_byte(stored, 0) | (get_byte(stored, 1)::bigint << 8) | (get_byte(stored, 2)::bigint << 16)
            | (get_byte(stored, 3)::bigint << 24) | (get_byte(stored, 4)::bigint << 32) | (get_byte(stored, 5)::bigint << 40)
            | (get_byte(stored, 6)::bigint << 48) | (get_byte(stored, 7)::bigint << 56))
        + (get_byte(more, 0) | (get_byte(more, 1)::bigint << 8) | (get_byte(more, 2)::bigint << 16)
            | (get_byte(more, 3)::bigint << 24) | (get_byte(more, 4)::bigint << 32) | (get_byte(more, 5)::bigint << 40)
            | (get_byte(more, 6)::bigint << 48) | (get_byte(more, 7)::bigint << 56)));
END
$$;

-- What a row of a counter counts; one that is none counts as nothing. Its being there tells that the function below knows sums.
CREATE OR REPLACE FUNCTION stoker_count_2(stored bytea) RETURNS bigint LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    IF octet_length(stored) <> 8 THEN
        RETURN 0;
    END IF;
    RETURN get_byte(stored, 0) | (get_byte(stored, 1)::bigint << 8) | (get_byte(stored, 2)::bigint << 16)
        | (get_byte(stored, 3)::bigint << 24) | (get_byte(stored, 4)::bigint << 32) | (get_byte(stored, 5)::bigint << 40)
        | (get_byte(stored, 6)::bigint << 48) | (get_byte(stored, 7)::bigint << 56);
END
$$;

-- Runs commits that have no effect on each other: gives for each its number, or 0 if it holds and writes nothing, or -N if
-- its check N does not hold (from 1). Items say which commit they are of (from 1).
-- Kinds of checks: 0 absent, 1 present, 2 number, 3 value, 4 at most `number` rows in `key`..`other`, 5 their sum at most `number`.
--
-- Nothing is read before all locks are held, and each statement sees what was committed before it: what the checks see stays
-- so until this transaction has ended, and its numbers are above those of all it has seen.
CREATE OR REPLACE FUNCTION stoker_commit_2(
    of_lane bigint, of_batch bigint, writing boolean[], lock_ids bigint[], lock_alone boolean[],
    check_commits integer[], check_ats integer[], check_kinds smallint[], check_keys bytea[], check_others bytea[],
    check_numbers bigint[], range_commits integer[], range_starts bytea[], range_ends bytea[],
    delete_commits integer[], delete_keys bytea[], put_commits integer[], put_keys bytea[], put_values bytea[],
    add_commits integer[], add_keys bytea[], add_deltas bigint[]
) RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    base CONSTANT bigint := 'stoker_row'::regclass::oid::bigint << 32;
    used integer;
    item record;
    counted bigint;
    summed numeric;
    results bigint[] := array_fill(0::bigint, ARRAY[cardinality(writing)]);
    wrote boolean := false;
BEGIN
    -- Beside programs of schema 1 the server finds out by itself who was in whose way, since all run serializable.
    IF current_setting('transaction_isolation') = 'serializable' THEN
        SELECT m.schema INTO used FROM stoker_meta m WHERE m.one FOR SHARE;
        IF used IS DISTINCT FROM 1 THEN
            RAISE EXCEPTION 'the database has schema %', used USING ERRCODE = 'STK03';
        END IF;
    ELSE
        PERFORM CASE WHEN l.alone THEN pg_advisory_xact_lock(base | l.id) ELSE pg_advisory_xact_lock_shared(base | l.id) END
        FROM unnest(lock_ids, lock_alone) AS l(id, alone);
        SELECT m.schema INTO used FROM stoker_meta m WHERE m.one;
        IF used IS DISTINCT FROM 2 OR current_setting('transaction_isolation') <> 'read committed' THEN
            RAISE EXCEPTION 'the database has schema %', used USING ERRCODE = 'STK03';
        END IF;
    END IF;
    FOR item IN
        SELECT c.of, min(c.at) AS at
        FROM unnest(check_commits, check_ats, check_kinds, check_keys, check_others, check_numbers)
            AS c(of, at, kind, key, other, number)
        LEFT JOIN stoker_row r ON r.key = c.key
        WHERE c.kind < 4 AND NOT coalesce(
            CASE c.kind
                WHEN 0 THEN r.key IS NULL
                WHEN 1 THEN r.key IS NOT NULL
                WHEN 2 THEN r.seq = c.number
                WHEN 3 THEN r.value = c.other
            END, false)
        GROUP BY c.of
    LOOP
        results[item.of] := -item.at;
    END LOOP;
    IF 4 = ANY (check_kinds) THEN
        FOR item IN
            SELECT c.of, c.at, c.key, c.other, c.number
            FROM unnest(check_commits, check_ats, check_kinds, check_keys, check_others, check_numbers)
                AS c(of, at, kind, key, other, number)
            WHERE c.kind = 4
        LOOP
            IF results[item.of] = 0 OR item.at < -results[item.of] THEN
                SELECT count(*) INTO counted FROM (
                    SELECT FROM stoker_row r WHERE r.key >= item.key AND r.key < item.other LIMIT item.number + 1
                ) found;
                IF counted > item.number THEN
                    results[item.of] := -item.at;
                END IF;
            END IF;
        END LOOP;
    END IF;
    IF 5 = ANY (check_kinds) THEN
        FOR item IN
            SELECT c.of, c.at, c.key, c.other, c.number
            FROM unnest(check_commits, check_ats, check_kinds, check_keys, check_others, check_numbers)
                AS c(of, at, kind, key, other, number)
            WHERE c.kind = 5
        LOOP
            IF results[item.of] = 0 OR item.at < -results[item.of] THEN
                SELECT coalesce(sum(stoker_count_2(r.value)), 0) INTO summed
                FROM stoker_row r WHERE r.key >= item.key AND r.key < item.other;
                IF summed > item.number THEN
                    results[item.of] := -item.at;
                END IF;
            END IF;
        END LOOP;
    END IF;
    FOR n IN 1 .. cardinality(writing) LOOP
        IF writing[n] AND results[n] = 0 THEN
            results[n] := nextval('stoker_seq');
            wrote := true;
        END IF;
    END LOOP;
    IF NOT wrote THEN
        RETURN results;
    END IF;
    IF cardinality(range_commits) > 0 THEN
        DELETE FROM stoker_row r USING unnest(range_commits, range_starts, range_ends) AS d(of, first, past)
        WHERE results[d.of] > 0 AND r.key >= d.first AND r.key < d.past;
    END IF;
    IF cardinality(delete_commits) > 0 THEN
        DELETE FROM stoker_row r USING unnest(delete_commits, delete_keys) AS d(of, key)
        WHERE results[d.of] > 0 AND r.key = d.key;
    END IF;
    IF cardinality(put_commits) > 0 THEN
        INSERT INTO stoker_row AS r (key, value, seq)
        SELECT p.key, p.value, results[p.of] FROM unnest(put_commits, put_keys, put_values) AS p(of, key, value)
        WHERE results[p.of] > 0
        ON CONFLICT (key) DO UPDATE SET value = excluded.value, seq = excluded.seq;
    END IF;
    IF cardinality(add_commits) > 0 THEN
        INSERT INTO stoker_row AS r (key, value, seq)
        SELECT a.key, stoker_counter_2(sum(a.delta)::bigint), max(results[a.of])
        FROM unnest(add_commits, add_keys, add_deltas) AS a(of, key, delta)
        WHERE results[a.of] > 0 GROUP BY a.key
        ON CONFLICT (key) DO UPDATE SET value = stoker_sum_2(r.value, excluded.value), seq = excluded.seq;
    END IF;
    -- Also if nothing was there to change: the numbers were drawn, so they have to become durable.
    INSERT INTO stoker_lane AS l (lane, batch, results, at) VALUES (of_lane, of_batch, results, clock_timestamp())
    ON CONFLICT (lane) DO UPDATE SET batch = excluded.batch, results = excluded.results, at = excluded.at;
    RETURN results;
END
$$;
