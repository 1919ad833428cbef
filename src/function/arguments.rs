//! Arguments, checked one by one: each reader says what it got and what is allowed.

use uuid::Uuid;

use super::host::Arguments;
use super::value::Value;
use crate::error::{Error, Result};

impl Arguments {
    /// Whether one of these arguments is given, and is NULL.
    pub fn any_null(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.named(name) == Some(&Value::Null))
    }

    /// Refuses NULL where it would mean more than was meant: it is not "any", it is something that was not found.
    pub fn refuse_null(&self, names: &[&'static str]) -> Result<()> {
        match names.iter().find(|name| self.named(name) == Some(&Value::Null)) {
            Some(name) => Err(Error::argument(name, "NULL", "a value; leave it out if it does not matter")),
            None => Ok(()),
        }
    }

    /// A named text. `None` when it is absent or NULL.
    pub fn text(&self, name: &str) -> Result<Option<String>> {
        match self.named(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Varchar(text)) => Ok(Some(text.clone())),
            Some(other) => Err(Error::argument(name, other.kind(), "a VARCHAR")),
        }
    }

    /// A named truth value. `None` when it is absent or NULL.
    pub fn flag(&self, name: &str) -> Result<Option<bool>> {
        match self.named(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Boolean(flag)) => Ok(Some(*flag)),
            Some(other) => Err(Error::argument(name, other.kind(), "true or false")),
        }
    }

    /// A named whole number within a range. `None` when it is absent or NULL.
    pub fn whole(&self, name: &str, range: std::ops::RangeInclusive<i64>) -> Result<Option<i64>> {
        match self.named(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::BigInt(number)) if range.contains(number) => Ok(Some(*number)),
            Some(Value::BigInt(number)) => {
                Err(Error::argument(name, number, format!("{} to {}", range.start(), range.end())))
            }
            Some(other) => Err(Error::argument(name, other.kind(), "a whole number")),
        }
    }

    /// A named moment, in microseconds since 1970, UTC. `None` when it is absent or NULL.
    pub fn moment(&self, name: &str) -> Result<Option<i64>> {
        match self.named(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Timestamp(micros)) => Ok(Some(*micros)),
            Some(other) => Err(Error::argument(name, other.kind(), "a TIMESTAMP")),
        }
    }

    /// A named list of ids, or a single one. `None` when it is absent or NULL.
    pub fn uuids(&self, name: &str) -> Result<Option<Vec<Uuid>>> {
        match self.named(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::List(items)) => items.iter().map(|item| uuid(name, item)).collect::<Result<_>>().map(Some),
            Some(one) => uuid(name, one).map(|id| Some(vec![id])),
        }
    }
}

/// One id, given as UUID or as text.
pub fn uuid(name: &str, value: &Value) -> Result<Uuid> {
    let allowed = "a UUID, as in '0190a5d2-7c1e-7b60-8000-000000000000'";
    match value {
        Value::Uuid(id) => Ok(*id),
        Value::Varchar(text) => Uuid::parse_str(text).map_err(|_| Error::argument(name, format!("'{text}'"), allowed)),
        other => Err(Error::argument(name, other.kind(), allowed)),
    }
}

/// The text of one of several named choices.
pub fn choice<T: Copy>(name: &str, text: &str, choices: &[(&str, T)]) -> Result<T> {
    let found = choices.iter().find(|(known, _)| *known == text);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let allowed: Vec<String> = choices.iter().map(|(known, _)| format!("'{known}'")).collect();
        Error::argument(name, format!("'{text}'"), allowed.join(", "))
    })
}
