//! `memory_stats`: a store in numbers.

use super::host::{Arguments, Caller, Plan, TableFunction};
use super::on_store::on_store;
use super::value::{Type, Value};
use crate::error::Result;
use crate::memory::statistics::statistics;
use crate::rank::watch::Tally;

pub const FUNCTION: TableFunction =
    TableFunction { name: "memory_stats", positional: &[], named: &[("store", Type::Varchar)], bind };

fn bind(caller: &Caller, arguments: &Arguments) -> Result<Plan> {
    let columns = vec![
        ("store", Type::Varchar),
        ("read_only", Type::Boolean),
        ("turns", Type::BigInt),
        ("sessions", Type::BigInt),
        ("encoded", Type::BigInt),
        ("wordpieces", Type::BigInt),
        ("state_bytes", Type::BigInt),
        ("encoder", Type::Varchar),
        ("encoder_id", Type::Varchar),
        ("dim", Type::BigInt),
        ("context", Type::BigInt),
        ("code_bits", Type::BigInt),
        ("template", Type::Varchar),
        ("learning", Type::Varchar),
        ("retrievals", Type::BigInt),
        ("generation", Type::BigInt),
        ("clusters", Type::BigInt),
        ("suppressed", Type::BigInt),
        ("feedback", Type::BigInt),
        ("answered", Type::BigInt),
        ("adapter", Type::Varchar),
        ("order_judged", Type::BigInt),
        ("order_gain", Type::Double),
        ("pool_judged", Type::BigInt),
        ("pool_gain", Type::Double),
        ("index_segments", Type::BigInt),
        ("index_bytes", Type::BigInt),
        ("reranker", Type::Varchar),
        ("note", Type::Varchar),
    ];
    on_store(caller, arguments, columns, move |caller, connection, store| {
        let statistics = statistics(connection, store, caller.settings.cache.as_deref())?;
        let (counts, config) = (statistics.counts, &store.config);
        let count = |count: u64| Value::from(i64::try_from(count).ok());
        let reranker = Some(caller.settings.models.reranker.clone()).filter(|name| !name.is_empty());
        let left_out = if caller.settings.knobs.watch { statistics.left_out() } else { Vec::new() };
        let learning =
            statistics.learning_error.map(|error| format!("the last retrieval was not learned from: {error}"));
        let notes: Vec<String> = learning.into_iter().chain(left_out).chain(statistics.index_problems).collect();
        let note = (!notes.is_empty()).then(|| notes.join("; "));
        Ok(vec![vec![
            store.database.name.as_str().into(),
            store.database.read_only.into(),
            count(counts.turns),
            count(counts.sessions),
            count(counts.encoded),
            count(counts.pieces),
            count(counts.state_bytes),
            config.encoder.name.as_str().into(),
            config.encoder.id.as_str().into(),
            config.encoder.dim.into(),
            config.encoder.context.into(),
            config.encoder.code_bits.into(),
            config.template.as_str().into(),
            config.learning.as_str().into(),
            count(counts.retrievals),
            statistics.generation.into(),
            count(counts.clusters),
            count(counts.suppressed),
            count(counts.feedback),
            statistics.answered.into(),
            statistics.adapter.map_or(Value::Null, |adapter| {
                format!("trained on {} questions: {}", adapter.questions, adapter.measured).into()
            }),
            statistics.of_order.occasions.into(),
            gain(&statistics.of_order),
            statistics.of_suppression.occasions.into(),
            gain(&statistics.of_suppression),
            statistics.index_segments.into(),
            statistics.index_bytes.map_or(Value::Null, count),
            reranker.into(),
            note.into(),
        ]])
    })
}

/// NULL while nothing was judged.
fn gain(tally: &Tally) -> Value {
    if tally.occasions > 0 { tally.mean.into() } else { Value::Null }
}
