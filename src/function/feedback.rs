//! `memory_feedback`: says which answers of a retrieval were used, and which were no help.

use uuid::Uuid;

use super::arguments::uuid;
use super::host::{Arguments, Caller, Plan, TableFunction};
use super::value::{Type, Value};
use crate::error::{Error, Result};
use crate::memory::feedback::feedback;
use crate::store::learning::Verdict;

pub const FUNCTION: TableFunction = TableFunction {
    name: "memory_feedback",
    // Of any type, so that a UUID serves as well as its text: not every DuckDB turns the one into the other by itself.
    positional: &[Type::Any],
    named: &[("used", Type::Any), ("ignored", Type::Any)],
    bind,
};

fn bind(caller: &Caller, arguments: &Arguments) -> Result<Plan> {
    let retrieval = match arguments.positional(0) {
        Value::Null => None,
        id => Some(uuid("retrieval_id", id)?),
    };
    let verdicts = verdicts(arguments)?;
    let caller = caller.clone();
    Ok(Plan {
        columns: vec![
            ("turn_id", Type::Uuid),
            ("store", Type::Varchar),
            ("verdict", Type::Varchar),
            ("cue_cluster", Type::BigInt),
            ("suppression", Type::Double),
        ],
        run: Box::new(move || {
            let Some(retrieval) = retrieval else { return Ok(Vec::new()) };
            let connection = caller.engine.connect()?;
            let noted = feedback(&caller.engine, &connection, retrieval, &verdicts, &caller.settings.knobs)?;
            let row = |noted: crate::memory::feedback::Noted| {
                vec![
                    noted.turn.into(),
                    noted.store.into(),
                    noted.verdict.name().into(),
                    noted.cluster.into(),
                    noted.suppression.into(),
                ]
            };
            Ok(noted.into_iter().map(row).collect())
        }),
    })
}

/// Each turn once, with one verdict.
fn verdicts(arguments: &Arguments) -> Result<Vec<(Uuid, Verdict)>> {
    let mut used = arguments.uuids("used")?.unwrap_or_default();
    let mut ignored = arguments.uuids("ignored")?.unwrap_or_default();
    for ids in [&mut used, &mut ignored] {
        ids.sort_unstable();
        ids.dedup();
    }
    if used.is_empty() && ignored.is_empty() {
        return Err(Error::argument("used and ignored", "empty", "at least one turn_id in either"));
    }
    if let Some(both) = used.iter().find(|id| ignored.contains(id)) {
        return Err(Error::argument("a turn_id", format!("'{both}' in both used and ignored"), "one of them"));
    }
    let used = used.into_iter().map(|id| (id, Verdict::Used));
    Ok(used.chain(ignored.into_iter().map(|id| (id, Verdict::Ignored))).collect())
}
