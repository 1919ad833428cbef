//! What the functions of one store have in common.

use duckdb::Connection;

use super::host::{Arguments, Caller, Columns, Plan, Row};
use crate::error::Result;
use crate::memory::engine::Store;

/// A plan that opens the store a call's argument `store` names, or else the caller's current database, and makes the rows.
pub fn on_store(
    caller: &Caller,
    arguments: &Arguments,
    columns: Columns,
    rows: impl Fn(&Caller, &Connection, &Store) -> Result<Vec<Row>> + Send + Sync + 'static,
) -> Result<Plan> {
    let name = arguments.text("store")?;
    let caller = caller.clone();
    let run = move || {
        let connection = caller.engine.connect()?;
        let store = caller.engine.store(&connection, name.as_deref(), &caller.search_path)?;
        rows(&caller, &connection, &store)
    };
    Ok(Plan { columns, run: Box::new(run) })
}
