//! `memory_forget`: removes turns with everything derived from them.

use super::host::{Arguments, Caller, Plan, TableFunction};
use super::on_store::on_store;
use super::value::Type;
use crate::error::{Error, Result};
use crate::memory::forget::{Forget, forget};
use crate::store::turns::Filter;

pub const FUNCTION: TableFunction = TableFunction {
    name: "memory_forget",
    positional: &[],
    named: &[
        ("turn_ids", Type::Any),
        ("session", Type::Varchar),
        ("before", Type::Timestamp),
        ("filter", Type::Varchar),
        ("store", Type::Varchar),
    ],
    bind,
};

fn bind(caller: &Caller, arguments: &Arguments) -> Result<Plan> {
    arguments.refuse_null(&["turn_ids", "session", "before", "filter"])?;
    let request = Forget {
        turns: arguments.uuids("turn_ids")?,
        filter: Filter {
            session: arguments.text("session")?,
            speaker: None,
            since: None,
            until: arguments.moment("before")?,
            predicate: arguments.text("filter")?,
        },
    };
    if request.turns.is_none() && request.filter.is_empty() {
        let allowed = "at least one of turn_ids, session, before, filter (filter := 'true' forgets everything)";
        return Err(Error::argument("the call", "without a choice of turns", allowed));
    }
    let columns = vec![("store", Type::Varchar), ("table_name", Type::Varchar), ("removed", Type::BigInt)];
    on_store(caller, arguments, columns, move |caller, connection, store| {
        let removed = forget(&caller.engine, connection, store, caller.settings.cache.as_deref(), &request)?;
        let row = |(table, rows): (&str, usize)| vec![store.database.name.as_str().into(), table.into(), rows.into()];
        Ok(removed.into_iter().map(row).collect())
    })
}
