//! `memory_reset`: takes back what was learned.

use super::host::{Arguments, Caller, Plan, TableFunction};
use super::value::Type;
use crate::error::Result;
use crate::memory::learn::reset;

pub const FUNCTION: TableFunction = TableFunction {
    name: "memory_reset",
    positional: &[],
    named: &[("store", Type::Varchar), ("cluster", Type::BigInt), ("session", Type::Varchar)],
    bind,
};

fn bind(caller: &Caller, arguments: &Arguments) -> Result<Plan> {
    let store = arguments.text("store")?;
    arguments.refuse_null(&["cluster", "session"])?;
    let cluster = arguments.whole("cluster", 0..=i64::MAX)?;
    let session = arguments.text("session")?;
    let caller = caller.clone();
    Ok(Plan {
        columns: vec![("store", Type::Varchar), ("removed", Type::BigInt)],
        run: Box::new(move || {
            let connection = caller.engine.connect()?;
            let store = caller.engine.store(&connection, store.as_deref(), &caller.search_path)?;
            let removed = reset(&connection, &store, cluster, session.as_deref())?;
            Ok(vec![vec![store.database.name.as_str().into(), removed.into()]])
        }),
    })
}
