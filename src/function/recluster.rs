//! `memory_recluster`: fits the cue clusters to the stored questions anew.

use super::host::{Arguments, Caller, Plan, TableFunction};
use super::on_store::on_store;
use super::value::Type;
use crate::error::Result;
use crate::memory::learn::recluster;

pub const FUNCTION: TableFunction =
    TableFunction { name: "memory_recluster", positional: &[], named: &[("store", Type::Varchar)], bind };

fn bind(caller: &Caller, arguments: &Arguments) -> Result<Plan> {
    let columns = vec![
        ("store", Type::Varchar),
        ("generation", Type::BigInt),
        ("cue_cluster", Type::BigInt),
        ("queries", Type::BigInt),
    ];
    on_store(caller, arguments, columns, move |caller, connection, store| {
        let clustering = recluster(connection, store, &caller.settings.knobs)?;
        let row = |(cluster, &queries): (usize, &i64)| {
            vec![store.database.name.as_str().into(), clustering.generation.into(), cluster.into(), queries.into()]
        };
        Ok(clustering.sizes.iter().enumerate().map(row).collect())
    })
}
