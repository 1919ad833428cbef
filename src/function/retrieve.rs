//! `memory_retrieve`: the memories that answer a question, best first.

use super::host::{Arguments, Caller, Columns, Plan, Row, TableFunction};
use super::value::{Type, Value};
use crate::error::{Error, Result};
use crate::memory::request::{Asker, Request, StoreChoice};
use crate::memory::retrieve::{Answer, Standing, retrieve};
use crate::store::turns::Filter;

pub const FUNCTION: TableFunction = TableFunction {
    name: "memory_retrieve",
    positional: &[Type::Varchar, Type::BigInt],
    named: &[
        ("stores", Type::Any),
        ("session", Type::Varchar),
        ("speaker", Type::Varchar),
        ("since", Type::Timestamp),
        ("until", Type::Timestamp),
        ("filter", Type::Varchar),
        ("rerank", Type::Boolean),
        ("learn", Type::Boolean),
        ("explain", Type::Boolean),
    ],
    bind,
};

/// The columns of an answer.
pub const ANSWER: [(&str, Type); 9] = [
    ("rank", Type::BigInt),
    ("turn_id", Type::Uuid),
    ("store", Type::Varchar),
    ("session_id", Type::Varchar),
    ("speaker", Type::Varchar),
    ("said_at", Type::Timestamp),
    ("content", Type::Varchar),
    ("score", Type::Double),
    ("retrieval_id", Type::Uuid),
];

/// What `explain := true` adds.
const TRACE: [(&str, Type); 12] = [
    ("word_rank", Type::BigInt),
    ("word_score", Type::Double),
    ("vector_rank", Type::BigInt),
    ("vector_score", Type::Double),
    ("fused_score", Type::Double),
    ("cue_cluster", Type::BigInt),
    ("suppression", Type::Double),
    ("feedback", Type::Double),
    ("precedent", Type::Double),
    ("pool_rank", Type::BigInt),
    ("token_score", Type::Double),
    ("reranker_score", Type::Double),
];

fn bind(caller: &Caller, arguments: &Arguments) -> Result<Plan> {
    let question = question(arguments.positional(0))?.map(str::to_owned);
    let k = limit(arguments.positional(1))?;
    // As in SQL, nothing equals NULL, or comes after it.
    let excluded = arguments.any_null(&["session", "speaker", "since", "until", "filter"]);
    let (explain, rerank) = (arguments.flag("explain")?.unwrap_or(false), arguments.flag("rerank")?);
    let settings = &caller.settings;
    let request = Request {
        k: k.unwrap_or(0),
        stores: stores(arguments)?,
        filter: Filter {
            session: arguments.text("session")?,
            speaker: arguments.text("speaker")?,
            since: arguments.moment("since")?,
            until: arguments.moment("until")?,
            predicate: arguments.text("filter")?,
        },
        rerank,
        require_reranker: settings.require_reranker,
        learn: arguments.flag("learn")?.unwrap_or(true) && settings.learn,
        progress: settings.progress,
    };
    // What was asked for and is not there is said in the rows, where nobody overlooks it.
    let noted = explain || rerank == Some(true);
    let mut columns: Columns = ANSWER.to_vec();
    if explain {
        columns.extend(TRACE);
    }
    if noted {
        columns.push(("note", Type::Varchar));
    }
    let caller = caller.clone();
    Ok(Plan {
        columns,
        run: Box::new(move || {
            let (Some(question), Some(_), false) = (&question, k, excluded) else { return Ok(Vec::new()) };
            let connection = caller.engine.connect()?;
            let answers = retrieve(&asker(&caller), &connection, &[question], &request)?;
            let note = |answer: &Answer| {
                (rerank == Some(true) && answer.trace.reranker.is_none())
                    .then_some("no reranker is installed (lethe_reranker_directory): ordered by token evidence")
            };
            let row = |answer: Answer| {
                let mut row = answer_row(&answer);
                if explain {
                    row.extend(trace_row(&answer));
                }
                if noted {
                    row.push(note(&answer).into());
                }
                row
            };
            Ok(answers.into_iter().flatten().map(row).collect())
        }),
    })
}

/// Who asks, for the pipeline.
pub fn asker(caller: &Caller) -> Asker<'_> {
    Asker {
        engine: &caller.engine,
        search_path: &caller.search_path,
        models: &caller.settings.models,
        cache: caller.settings.cache.as_deref(),
        knobs: &caller.settings.knobs,
    }
}

/// What is asked. `None` when it is NULL.
pub fn question(value: &Value) -> Result<Option<&str>> {
    match value {
        Value::Null => Ok(None),
        Value::Varchar(text) => Ok(Some(text)),
        other => Err(Error::argument("query", other.kind(), "a VARCHAR without NUL characters")),
    }
}

/// How many answers are wanted. `None` when k is NULL.
pub fn limit(value: &Value) -> Result<Option<usize>> {
    match value {
        Value::BigInt(k) => match usize::try_from(*k) {
            Ok(k) => Ok(Some(k)),
            Err(_) => Err(Error::argument("k", k, "0 or more")),
        },
        Value::Null => Ok(None),
        other => Err(Error::argument("k", other.kind(), "a whole number, 0 or more")),
    }
}

fn stores(arguments: &Arguments) -> Result<StoreChoice> {
    let allowed = "a list of names of attached databases, one name, or '*' for every store";
    let name = |value: &Value| match value {
        Value::Varchar(name) => Ok(name.clone()),
        other => Err(Error::argument("stores", format!("a list with {}", other.kind()), allowed)),
    };
    match arguments.named("stores") {
        None | Some(Value::Null) => Ok(StoreChoice::Current),
        Some(Value::Varchar(name)) if name == "*" => Ok(StoreChoice::All),
        Some(Value::Varchar(name)) => Ok(StoreChoice::Named(vec![name.clone()])),
        Some(Value::List(names)) if names.is_empty() => Err(Error::argument("stores", "an empty list", allowed)),
        Some(Value::List(names)) => Ok(StoreChoice::Named(names.iter().map(name).collect::<Result<_>>()?)),
        Some(other) => Err(Error::argument("stores", other.kind(), allowed)),
    }
}

/// The values of [`ANSWER`].
pub fn answer_row(answer: &Answer) -> Row {
    let turn = &answer.turn;
    vec![
        answer.rank.into(),
        turn.id.into(),
        answer.store.as_str().into(),
        turn.session.clone().into(),
        turn.speaker.clone().into(),
        turn.said_at.map_or(Value::Null, Value::Timestamp),
        turn.content.as_str().into(),
        answer.score.into(),
        answer.retrieval.into(),
    ]
}

/// The values of [`TRACE`].
fn trace_row(answer: &Answer) -> Row {
    let trace = &answer.trace;
    let rank = |standing: Option<Standing>| standing.map(|standing| standing.rank).into();
    let score = |standing: Option<Standing>| standing.map(|standing| standing.score).into();
    vec![
        rank(trace.words),
        score(trace.words),
        rank(trace.vectors),
        score(trace.vectors),
        trace.fused.into(),
        trace.cluster.into(),
        trace.suppression.into(),
        trace.feedback.into(),
        trace.precedent.into(),
        trace.pool_rank.into(),
        trace.evidence.into(),
        trace.reranker.into(),
    ]
}
