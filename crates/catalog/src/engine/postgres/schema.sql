-- The tables of a catalog. Run once, under a lock, in one transaction, before `commit.sql`.
-- Functions carry the number of the form in their name, so that programs of two versions can work side by side.

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
