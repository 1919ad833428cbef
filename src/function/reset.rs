//! `memory_reset`: takes back what was learned.

use super::arguments::choice;
use super::host::{Arguments, Caller, Plan, TableFunction};
use super::on_store::on_store;
use super::value::Type;
use crate::error::{Error, Result};
use crate::memory::reset::{Learned, reset, reset_suppression};

pub const FUNCTION: TableFunction = TableFunction {
    name: "memory_reset",
    positional: &[],
    named: &[
        ("store", Type::Varchar),
        ("learned", Type::Varchar),
        ("cluster", Type::BigInt),
        ("session", Type::Varchar),
    ],
    bind,
};

fn bind(caller: &Caller, arguments: &Arguments) -> Result<Plan> {
    arguments.refuse_null(&["learned", "cluster", "session"])?;
    let learned = arguments.text("learned")?.map(|name| choice("learned", &name, &Learned::NAMES)).transpose()?;
    let learned = learned.unwrap_or(Learned::Suppression);
    let cluster = arguments.whole("cluster", 0..=i64::MAX)?;
    let session = arguments.text("session")?;
    let narrowed = cluster.is_some() || session.is_some();
    if narrowed && learned != Learned::Suppression {
        return Err(Error::argument("learned", "not 'suppression'", "'suppression' where cluster or session is given"));
    }
    let columns = vec![("store", Type::Varchar), ("removed", Type::BigInt)];
    on_store(caller, arguments, columns, move |_, connection, store| {
        let removed = match narrowed {
            true => reset_suppression(connection, store, cluster, session.as_deref())?,
            false => reset(connection, store, learned)?,
        };
        Ok(vec![vec![store.database.name.as_str().into(), removed.into()]])
    })
}
