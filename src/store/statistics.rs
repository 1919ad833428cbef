//! Counts over a store's tables.

use duckdb::Connection;

use super::catalog::Database;
use crate::error::Result;

/// What the tables of a store hold.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    pub turns: u64,
    pub sessions: u64,
    pub encoded: u64,
    pub pieces: u64,
    pub state_bytes: u64,
    pub retrievals: u64,
    pub clusters: u64,
    pub suppressed: u64,
    /// Clusters in which more than half of the turns are suppressed.
    pub saturated: u64,
    pub feedback: u64,
}

pub fn counts(connection: &Connection, database: &Database, encoder: &str) -> Result<Counts> {
    let table = |name| database.table(name);
    let sql = format!(
        "SELECT (SELECT count(*) FROM {turns}), (SELECT count(DISTINCT session_id) FROM {turns}), \
         count(*), coalesce(sum(len(token_ids)), 0)::UBIGINT, \
         coalesce(sum(octet_length(codes) + octet_length(scales) + 4 * len(embedding) + 4 * len(token_ids)), 0)::UBIGINT, \
         (SELECT count(*) FROM {retrievals}), (SELECT count(*) FROM {cues}), \
         (SELECT count(DISTINCT turn_id) FROM {suppression}), \
         (SELECT count(*) FROM (SELECT cluster_id FROM {suppression} WHERE score > 0 GROUP BY cluster_id \
          HAVING 2 * count(*) > (SELECT count(*) FROM {turns}))), (SELECT count(*) FROM {feedback}) \
         FROM {states} WHERE encoder_id = ? AND turn_id IN (SELECT turn_id FROM {turns})",
        turns = table("turns"),
        retrievals = table("retrievals"),
        cues = table("cues"),
        suppression = table("suppression"),
        feedback = table("feedback"),
        states = table("states"),
    );
    Ok(connection.query_row(&sql, [encoder], |row| {
        Ok(Counts {
            turns: row.get(0)?,
            sessions: row.get(1)?,
            encoded: row.get(2)?,
            pieces: row.get(3)?,
            state_bytes: row.get(4)?,
            retrievals: row.get(5)?,
            clusters: row.get(6)?,
            suppressed: row.get(7)?,
            saturated: row.get(8)?,
            feedback: row.get(9)?,
        })
    })?)
}
