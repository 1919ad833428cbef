//! `memory_reset`: takes back what was learned.

use super::host::{Arguments, Caller, Plan, TableFunction};
use super::on_store::on_store;
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
    arguments.refuse_null(&["cluster", "session"])?;
    let cluster = arguments.whole("cluster", 0..=i64::MAX)?;
    let session = arguments.text("session")?;
    let columns = vec![("store", Type::Varchar), ("removed", Type::BigInt)];
    on_store(caller, arguments, columns, move |_, connection, store| {
        let removed = reset(connection, store, cluster, session.as_deref())?;
        Ok(vec![vec![store.database.name.as_str().into(), removed.into()]])
    })
}
