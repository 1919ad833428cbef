//! The tables: every SQL string of the extension, and the connection they are run on.
//!
//! A store is the schema `lethe` of an attached database. Names are always written in full and quoted, because the
//! connections made here resolve names by a search path of their own.

pub mod adapters;
pub mod catalog;
pub mod instance;
pub mod learning;
pub mod retrievals;
pub mod schema;
pub mod states;
pub mod statistics;
pub mod turns;
pub mod version;

use std::sync::Arc;

use duckdb::Connection;
use duckdb::arrow::array::{Array, ArrayRef, Float32Builder, ListBuilder};
use duckdb::arrow::datatypes::{Field, Schema};
use duckdb::arrow::record_batch::RecordBatch;

use catalog::Database;

use crate::error::{Error, Result};

/// The tables whose rows belong to a turn and go with it.
const DERIVED: [&str; 3] = ["states", "suppression", "feedback"];

/// Runs `work` in a transaction of its own: all of it is committed, or nothing.
pub fn transaction<T>(connection: &Connection, work: impl FnOnce() -> Result<T>) -> Result<T> {
    connection.execute_batch("BEGIN TRANSACTION")?;
    match work() {
        Ok(value) => {
            connection.execute_batch("COMMIT")?;
            Ok(value)
        }
        Err(error) => {
            // The error that matters is the first; a failed ROLLBACK leaves nothing behind either, the connection goes away.
            let _ = connection.execute_batch("ROLLBACK");
            Err(error)
        }
    }
}

/// Appends rows to a table, given column by column in the table's order. Texts become UUIDs where the table has them.
pub(crate) fn append(
    connection: &Connection,
    database: &Database,
    table: &str,
    columns: Vec<(&str, ArrayRef)>,
) -> Result<()> {
    let fields: Vec<Field> =
        columns.iter().map(|(name, array)| Field::new(*name, array.data_type().clone(), false)).collect();
    let arrays = columns.into_iter().map(|(_, array)| array).collect();
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays);
    let mut appender = connection.appender_to_catalog_and_db(table, &database.name, "lethe")?;
    appender.append_record_batch(batch.map_err(|error| Error::Internal(error.to_string()))?)?;
    appender.flush()?;
    Ok(())
}

/// A column of what a query returned.
pub(crate) fn column<T: 'static>(batch: &RecordBatch, index: usize) -> Result<&T> {
    cast(batch.column(index))
}

pub(crate) fn cast<T: 'static>(array: &ArrayRef) -> Result<&T> {
    array
        .as_any()
        .downcast_ref()
        .ok_or_else(|| Error::Internal(format!("DuckDB returned a column of type {}", array.data_type())))
}

/// A FLOAT[] column.
pub(crate) fn float_lists<'a>(rows: impl IntoIterator<Item = &'a [f32]>) -> ArrayRef {
    let mut lists = ListBuilder::new(Float32Builder::new());
    for row in rows {
        lists.values().append_slice(row);
        lists.append(true);
    }
    Arc::new(lists.finish())
}

/// A number of rows or bytes as SQL has it.
pub(crate) fn to_i64(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Parses the text of a UUID column.
pub(crate) fn uuid(text: &str) -> Result<uuid::Uuid> {
    uuid::Uuid::parse_str(text).map_err(|error| Error::Internal(format!("DuckDB returned the UUID '{text}': {error}")))
}

/// `ids` as the rows of a one-column relation named `ids(turn_id)`, to join with.
pub(crate) fn ids_relation(ids: &[uuid::Uuid]) -> String {
    let list: Vec<String> = ids.iter().map(|id| format!("'{id}'")).collect();
    format!("(SELECT unnest([{}]::UUID[]) AS turn_id)", list.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_written_as_a_relation() {
        let id = uuid::Uuid::from_u128(1);
        assert_eq!(ids_relation(&[id]), "(SELECT unnest(['00000000-0000-0000-0000-000000000001']::UUID[]) AS turn_id)");
        assert_eq!(ids_relation(&[]), "(SELECT unnest([]::UUID[]) AS turn_id)");
    }
}
