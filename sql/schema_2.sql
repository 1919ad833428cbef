-- Version 2 of a store: what was found is kept with the question.

-- The best of each retrieval's pool, with their final scores in standard deviations of the pool's: plain as if nothing had been
-- learned, learned with what was; NULL where the turn would not have been in the pool. Empty if only some turns could be ranked.
ALTER TABLE {store}.lethe.retrievals ADD COLUMN IF NOT EXISTS pool STRUCT(turn_id UUID, plain FLOAT, learned FLOAT)[];
