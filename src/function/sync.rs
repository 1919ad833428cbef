//! `memory_sync`: encodes what plain SQL changed in `lethe.turns`.

use super::host::{Arguments, Caller, Plan, TableFunction};
use super::on_store::on_store;
use super::value::Type;
use crate::error::Result;
use crate::memory::sync::sync;

pub const FUNCTION: TableFunction =
    TableFunction { name: "memory_sync", positional: &[], named: &[("store", Type::Varchar)], bind };

fn bind(caller: &Caller, arguments: &Arguments) -> Result<Plan> {
    let columns = vec![
        ("store", Type::Varchar),
        ("added", Type::BigInt),
        ("updated", Type::BigInt),
        ("removed", Type::BigInt),
        ("encoded", Type::BigInt),
        ("turns_per_second", Type::Double),
    ];
    on_store(caller, arguments, columns, move |caller, connection, store| {
        let encoder = caller.settings.models.encoder()?;
        let report = sync(connection, store, caller.settings.means(&encoder))?.report;
        let speed = (report.encoded > 0).then(|| report.encoded as f64 / report.seconds.max(1e-9));
        Ok(vec![vec![
            store.database.name.as_str().into(),
            report.added.into(),
            report.updated.into(),
            report.removed.into(),
            report.encoded.into(),
            speed.into(),
        ]])
    })
}
