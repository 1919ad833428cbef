-- Version 1 of a store. {store} is the quoted name of an attached database.
-- Makes what is not there and leaves the rest, so that it also puts back a table that was dropped.
-- Plain tables only: no PRIMARY KEY, UNIQUE, sequence or FLOAT[n], which a DuckLake catalog does not have.
CREATE SCHEMA IF NOT EXISTS {store}.lethe;

-- What the store is: schema_version, store_id, created_at, encoder_id, learning, template.
CREATE TABLE IF NOT EXISTS {store}.lethe.store (key VARCHAR NOT NULL, value VARCHAR NOT NULL);

-- Who encoded it, and how: context is the number of wordpieces of earlier turns a turn is read behind.
CREATE TABLE IF NOT EXISTS {store}.lethe.encoders (
    encoder_id VARCHAR NOT NULL, name VARCHAR NOT NULL, dim INTEGER NOT NULL, pooling VARCHAR NOT NULL,
    context INTEGER NOT NULL, code_bits INTEGER NOT NULL);

-- The memories. said_at is UTC; a turn is not retrieved from valid_until on.
CREATE TABLE IF NOT EXISTS {store}.lethe.turns (
    turn_id UUID NOT NULL DEFAULT uuidv7(), session_id VARCHAR, speaker VARCHAR, said_at TIMESTAMP,
    content VARCHAR NOT NULL, metadata VARCHAR, valid_until TIMESTAMP);

-- Derived from turns: the vector of each turn and the coded state of each of its wordpieces.
CREATE TABLE IF NOT EXISTS {store}.lethe.states (
    turn_id UUID NOT NULL, encoder_id VARCHAR NOT NULL, content_hash VARCHAR NOT NULL, embedding FLOAT[] NOT NULL,
    token_ids UINTEGER[] NOT NULL, codes BLOB NOT NULL, scales BLOB NOT NULL);

-- The newest questions, as cues are clustered from them.
CREATE TABLE IF NOT EXISTS {store}.lethe.retrievals (
    retrieval_id UUID NOT NULL, asked_at TIMESTAMP NOT NULL, query VARCHAR NOT NULL, embedding FLOAT[] NOT NULL,
    cluster_id INTEGER NOT NULL);

-- Kinds of question. Without rows there is one kind, cluster 0.
CREATE TABLE IF NOT EXISTS {store}.lethe.cues (
    generation INTEGER NOT NULL, cluster_id INTEGER NOT NULL, centroid FLOAT[] NOT NULL, queries BIGINT NOT NULL);

-- The suppression matrix, sparse: score is in [0, lethe_suppression_cap] and counts half after lethe_half_life days.
CREATE TABLE IF NOT EXISTS {store}.lethe.suppression (
    turn_id UUID NOT NULL, cluster_id INTEGER NOT NULL, score DOUBLE NOT NULL, hits BIGINT NOT NULL,
    updated_at TIMESTAMP NOT NULL);

-- What a person or an agent said about an answer: verdict is used or ignored.
CREATE TABLE IF NOT EXISTS {store}.lethe.feedback (
    retrieval_id UUID NOT NULL, turn_id UUID NOT NULL, verdict VARCHAR NOT NULL, given_at TIMESTAMP NOT NULL);

-- Query adapters: T(h) = h + BAh, rescaled; a is rank × dim, b is dim × rank, row by row.
CREATE TABLE IF NOT EXISTS {store}.lethe.adapters (
    adapter_id UUID NOT NULL, encoder_id VARCHAR NOT NULL, rank INTEGER NOT NULL, a FLOAT[] NOT NULL, b FLOAT[] NOT NULL,
    trained_on VARCHAR NOT NULL, measured VARCHAR NOT NULL);
