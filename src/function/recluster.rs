//! `memory_recluster`: fits the cue clusters to the stored questions anew.

use super::host::{Arguments, Caller, Plan, TableFunction};
use super::value::Type;
use crate::error::Result;
use crate::memory::learn::recluster;

pub const FUNCTION: TableFunction =
    TableFunction { name: "memory_recluster", positional: &[], named: &[("store", Type::Varchar)], bind };

fn bind(caller: &Caller, arguments: &Arguments) -> Result<Plan> {
    let store = arguments.text("store")?;
    let caller = caller.clone();
    Ok(Plan {
        columns: vec![
            ("store", Type::Varchar),
            ("generation", Type::BigInt),
            ("cue_cluster", Type::BigInt),
            ("queries", Type::BigInt),
        ],
        run: Box::new(move || {
            let connection = caller.engine.connect()?;
            let store = caller.engine.store(&connection, store.as_deref(), &caller.search_path)?;
            let clustering = recluster(&connection, &store, &caller.settings.knobs)?;
            let row = |(cluster, &queries): (usize, &i64)| {
                vec![store.database.name.as_str().into(), clustering.generation.into(), cluster.into(), queries.into()]
            };
            Ok(clustering.sizes.iter().enumerate().map(row).collect())
        }),
    })
}
