//! `memory_suppression`: what was learned.

use super::host::{Arguments, Caller, Plan, TableFunction};
use super::on_store::on_store;
use super::value::{Type, Value};
use crate::error::Result;
use crate::memory::engine::now;
use crate::memory::learn::days;
use crate::store::learning::{Suppression, suppression};

pub const FUNCTION: TableFunction =
    TableFunction { name: "memory_suppression", positional: &[], named: &[("store", Type::Varchar)], bind };

fn bind(caller: &Caller, arguments: &Arguments) -> Result<Plan> {
    let columns = vec![
        ("turn_id", Type::Uuid),
        ("store", Type::Varchar),
        ("cue_cluster", Type::BigInt),
        ("score", Type::Double),
        ("counts_now", Type::Double),
        ("hits", Type::BigInt),
        ("updated_at", Type::Timestamp),
    ];
    on_store(caller, arguments, columns, move |caller, connection, store| {
        let (now, retention) = (now(), caller.settings.knobs.retention);
        let row = |entry: Suppression| {
            vec![
                entry.turn.into(),
                store.database.name.as_str().into(),
                entry.cluster.into(),
                entry.score.into(),
                retention.read(entry.score, days(entry.updated_at, now)).into(),
                entry.hits.into(),
                Value::Timestamp(entry.updated_at),
            ]
        };
        Ok(suppression(connection, &store.database)?.into_iter().map(row).collect())
    })
}
