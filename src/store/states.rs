//! The table `states`: what turns were encoded to.

use std::sync::Arc;

use duckdb::arrow::array::{
    ArrayRef, BinaryArray, Float32Array, ListArray, ListBuilder, StringArray, UInt32Array, UInt32Builder,
};
use duckdb::arrow::record_batch::RecordBatch;
use duckdb::{Connection, params};
use uuid::Uuid;

use super::catalog::Database;
use super::{DERIVED, append, cast, column, float_lists, ids_relation, retrievals, transaction, uuid};
use crate::error::Result;

/// One row of `states`, as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredState {
    pub turn: Uuid,
    /// Over everything the state was computed from.
    pub content_hash: String,
    pub embedding: Vec<f32>,
    pub pieces: Vec<u32>,
    pub codes: Vec<u8>,
    /// Little-endian f32, one a piece.
    pub scales: Vec<u8>,
}

/// Passes the states that `encoder` made, of the given turns or of all, one after another: they need not fit into memory.
pub fn read(
    connection: &Connection,
    database: &Database,
    encoder: &str,
    turns: Option<&[Uuid]>,
    mut each: impl FnMut(StoredState) -> Result<()>,
) -> Result<()> {
    let these = turns.map_or_else(String::new, |ids| format!("AND turn_id IN {}", ids_relation(ids)));
    let sql = format!(
        "SELECT turn_id::VARCHAR, content_hash, embedding, token_ids, codes, scales FROM {} WHERE encoder_id = ? {these}",
        database.table("states")
    );
    let mut statement = connection.prepare(&sql)?;
    for batch in statement.stream_arrow(params![encoder])? {
        read_batch(&batch?, &mut each)?;
    }
    Ok(())
}

fn read_batch(batch: &RecordBatch, each: &mut impl FnMut(StoredState) -> Result<()>) -> Result<()> {
    let text = |i| column::<StringArray>(batch, i);
    let list = |i| column::<ListArray>(batch, i);
    let blob = |i| column::<BinaryArray>(batch, i);
    let (turns, hashes, embeddings, pieces, codes, scales) =
        (text(0)?, text(1)?, list(2)?, list(3)?, blob(4)?, blob(5)?);
    for row in 0..batch.num_rows() {
        each(StoredState {
            turn: uuid(turns.value(row))?,
            content_hash: hashes.value(row).to_owned(),
            embedding: cast::<Float32Array>(&embeddings.value(row))?.values().to_vec(),
            pieces: cast::<UInt32Array>(&pieces.value(row))?.values().to_vec(),
            codes: codes.value(row).to_vec(),
            scales: scales.value(row).to_vec(),
        })?;
    }
    Ok(())
}

/// Stores states in the place of what there was of the same turns.
pub fn replace(connection: &Connection, database: &Database, encoder: &str, states: &[StoredState]) -> Result<()> {
    let ids: Vec<Uuid> = states.iter().map(|state| state.turn).collect();
    let mut pieces = ListBuilder::new(UInt32Builder::new());
    for state in states {
        pieces.values().append_slice(&state.pieces);
        pieces.append(true);
    }
    let text = |values: Vec<String>| -> ArrayRef { Arc::new(StringArray::from(values)) };
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("turn_id", text(states.iter().map(|state| state.turn.to_string()).collect())),
        ("encoder_id", text(vec![encoder.to_owned(); states.len()])),
        ("content_hash", text(states.iter().map(|state| state.content_hash.clone()).collect())),
        ("embedding", float_lists(states.iter().map(|state| state.embedding.as_slice()))),
        ("token_ids", Arc::new(pieces.finish())),
        ("codes", Arc::new(BinaryArray::from_iter_values(states.iter().map(|state| &state.codes)))),
        ("scales", Arc::new(BinaryArray::from_iter_values(states.iter().map(|state| &state.scales)))),
    ];
    delete(connection, database, &ids)?;
    append(connection, database, "states", columns)
}

/// Deletes the states of turns; returns the rows deleted.
pub fn delete(connection: &Connection, database: &Database, turns: &[Uuid]) -> Result<usize> {
    let sql = format!("DELETE FROM {} WHERE turn_id IN {}", database.table("states"), ids_relation(turns));
    Ok(connection.execute(&sql, [])?)
}

/// How many states `encoder` made.
pub fn count(connection: &Connection, database: &Database, encoder: &str) -> Result<usize> {
    let sql = format!("SELECT count(*) FROM {} WHERE encoder_id = ?", database.table("states"));
    Ok(connection.query_row(&sql, params![encoder], |row| row.get::<_, u64>(0))? as usize)
}

/// Deletes what was derived from turns that are no more, whoever deleted them. Returns how many states there were.
pub fn delete_orphans(connection: &Connection, database: &Database) -> Result<usize> {
    let turns = database.table("turns");
    transaction(connection, || {
        let gone = format!("turn_id NOT IN (SELECT turn_id FROM {turns})");
        retrievals::drop_turns(connection, database, &gone)?;
        let mut states = 0;
        for table in DERIVED {
            let orphans = format!("FROM {} WHERE {gone}", database.table(table));
            // Looked for first: a DELETE of nothing would still write to the log of the database.
            let count: u64 = connection.query_row(&format!("SELECT count(*) {orphans}"), [], |row| row.get(0))?;
            if count > 0 {
                connection.execute(&format!("DELETE {orphans}"), [])?;
            }
            if table == "states" {
                states = count as usize;
            }
        }
        Ok(states)
    })
}
