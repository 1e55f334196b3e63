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
