//! `memory_add`: stores and encodes one turn, or a list of them.

use uuid::Uuid;

use super::host::{Arguments, Caller, Plan, TableFunction};
use super::on_store::on_store;
use super::value::{Type, Value};
use crate::error::{Error, Result};
use crate::memory::add::add;
use crate::memory::engine::now;
use crate::store::turns::{NewTurn, Turn};

pub const FUNCTION: TableFunction = TableFunction {
    name: "memory_add",
    positional: &[Type::Any],
    named: &[
        ("session", Type::Varchar),
        ("speaker", Type::Varchar),
        ("said_at", Type::Timestamp),
        ("metadata", Type::Varchar),
        ("store", Type::Varchar),
    ],
    bind,
};

const CONTENT: &str = "a VARCHAR, a STRUCT with the field content and any of session, speaker, said_at (a TIMESTAMP), metadata, or \
                       a list of either";

/// A turn as the call describes it; what a list element leaves open, the named arguments say for all.
#[derive(Clone, Default)]
struct Described {
    content: String,
    session: Option<String>,
    speaker: Option<String>,
    /// `None`: now. `Some(None)`: nobody knows when.
    said_at: Option<Option<i64>>,
    metadata: Option<String>,
}

fn bind(caller: &Caller, arguments: &Arguments) -> Result<Plan> {
    let shared = Described {
        content: String::new(),
        session: arguments.text("session")?,
        speaker: arguments.text("speaker")?,
        said_at: arguments.named("said_at").map(|_| arguments.moment("said_at")).transpose()?,
        metadata: arguments.text("metadata")?,
    };
    let described = match arguments.positional(0) {
        Value::Null => Vec::new(),
        Value::List(items) => {
            let given = items.iter().filter(|item| **item != Value::Null);
            given.map(|item| describe(item, &shared)).collect::<Result<Vec<_>>>()?
        }
        one => vec![describe(one, &shared)?],
    };
    let columns = vec![("turn_id", Type::Uuid), ("store", Type::Varchar)];
    on_store(caller, arguments, columns, move |caller, connection, store| {
        let now = now();
        let turns: Vec<NewTurn> = described.iter().map(|described| new_turn(described, now)).collect();
        let encoder = caller.settings.models.encoder()?;
        let ids = add(connection, store, caller.settings.means(&encoder), &turns)?;
        Ok(ids.into_iter().map(|id| vec![id.into(), store.database.name.as_str().into()]).collect())
    })
}

fn describe(item: &Value, shared: &Described) -> Result<Described> {
    let mut turn = shared.clone();
    match item {
        Value::Varchar(content) => turn.content.clone_from(content),
        Value::Struct(fields) => {
            for (name, value) in fields {
                set(&mut turn, name, value)?;
            }
        }
        other => return Err(Error::argument("content", other.kind(), CONTENT)),
    }
    if turn.content.trim().is_empty() {
        return Err(Error::argument("content", "empty", "a text with something in it"));
    }
    if let Some(metadata) = &turn.metadata {
        serde_json::from_str::<serde_json::Value>(metadata)
            .map_err(|error| Error::argument("metadata", format!("'{metadata}' ({error})"), "JSON text"))?;
    }
    Ok(turn)
}

fn set(turn: &mut Described, name: &str, value: &Value) -> Result<()> {
    match (name.to_ascii_lowercase().as_str(), value) {
        ("content", Value::Varchar(text)) => turn.content.clone_from(text),
        ("session" | "session_id", Value::Varchar(text)) => turn.session = Some(text.clone()),
        ("speaker", Value::Varchar(text)) => turn.speaker = Some(text.clone()),
        ("metadata", Value::Varchar(text)) => turn.metadata = Some(text.clone()),
        ("said_at", Value::Timestamp(micros)) => turn.said_at = Some(Some(*micros)),
        ("said_at", Value::Null) => turn.said_at = Some(None),
        ("session" | "session_id" | "speaker" | "metadata", Value::Null) => {}
        ("content" | "session" | "session_id" | "speaker" | "metadata" | "said_at", other) => {
            return Err(Error::argument(&format!("content's field {name}"), other.kind(), CONTENT));
        }
        _ => return Err(Error::Argument(format!("unknown field {name} of content; allowed: {CONTENT}"))),
    }
    Ok(())
}

fn new_turn(described: &Described, now: i64) -> NewTurn {
    let Described { content, session, speaker, said_at, metadata } = described.clone();
    let said_at = said_at.unwrap_or(Some(now));
    NewTurn { turn: Turn { id: Uuid::now_v7(), session, speaker, said_at, content }, metadata }
}
