//! The table `adapters`: the query adapter that a store trained on its own feedback.

use std::sync::Arc;

use duckdb::arrow::array::{ArrayRef, Float32Array, Int32Array, ListArray, StringArray};
use duckdb::{Connection, params};
use uuid::Uuid;

use super::catalog::Database;
use super::{append, cast, column, float_lists, transaction};
use crate::error::{Error, Result};
use crate::rank::adapter::Adapter;

/// An adapter, and what is said of it.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredAdapter {
    pub adapter: Arc<Adapter>,
    /// Of how many questions it learned.
    pub questions: u32,
    /// How it did on questions held out, as JSON.
    pub measured: String,
}

/// The adapter that was trained for states of `encoder`, of `dim` values each.
pub fn read(connection: &Connection, database: &Database, encoder: &str, dim: usize) -> Result<Option<StoredAdapter>> {
    // The newest, should a writer of this table have left several: ids are in the order they were made.
    let sql = format!(
        "SELECT rank, a, b, trained_on, measured FROM {} WHERE encoder_id = ? ORDER BY adapter_id DESC LIMIT 1",
        database.table("adapters")
    );
    let mut statement = connection.prepare(&sql)?;
    let Some(batch) = statement.query_arrow(params![encoder])?.find(|batch| batch.num_rows() > 0) else {
        return Ok(None);
    };
    let floats = |index: usize| -> Result<Vec<f32>> {
        Ok(cast::<Float32Array>(&column::<ListArray>(&batch, index)?.value(0))?.values().to_vec())
    };
    let rank = column::<Int32Array>(&batch, 0)?.value(0);
    let questions = column::<StringArray>(&batch, 3)?.value(0);
    let broken = |problem: String| Error::Data { store: database.name.clone(), table: "adapters", problem };
    let adapter = Adapter::new(dim, usize::try_from(rank).unwrap_or_default(), floats(1)?, floats(2)?);
    Ok(Some(StoredAdapter {
        adapter: adapter
            .map(Arc::new)
            .ok_or_else(|| broken(format!("matrices that are not {rank} × {dim} and {dim} × {rank}")))?,
        questions: questions.parse().map_err(|_| broken(format!("trained_on '{questions}'; a number is expected")))?,
        measured: column::<StringArray>(&batch, 4)?.value(0).to_owned(),
    }))
}

/// Puts an adapter in the place of what there was for that encoder.
pub fn replace(connection: &Connection, database: &Database, encoder: &str, stored: &StoredAdapter) -> Result<()> {
    let adapter = &stored.adapter;
    let text = |value: String| -> ArrayRef { Arc::new(StringArray::from(vec![value])) };
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("adapter_id", text(Uuid::now_v7().to_string())),
        ("encoder_id", text(encoder.to_owned())),
        ("rank", Arc::new(Int32Array::from(vec![i32::try_from(adapter.rank()).unwrap_or(i32::MAX)]))),
        ("a", float_lists([adapter.a()])),
        ("b", float_lists([adapter.b()])),
        ("trained_on", text(stored.questions.to_string())),
        ("measured", text(stored.measured.clone())),
    ];
    transaction(connection, || {
        connection.execute(&format!("DELETE FROM {} WHERE encoder_id = ?", database.table("adapters")), [encoder])?;
        append(connection, database, "adapters", columns)
    })
}
