//! How a turn is written when it is encoded.

use chrono::DateTime;

use crate::error::{Error, Result};
use crate::store::turns::Turn;

/// What stands in front of a turn's content: chosen per store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Template {
    /// `Ana (8 May, 2023): content`, without the part that is not known.
    Dated,
    /// `Ana: content`
    Speaker,
    /// The content alone.
    Plain,
}

impl Template {
    pub const NAMES: [(&'static str, Self); 3] =
        [("dated", Self::Dated), ("speaker", Self::Speaker), ("plain", Self::Plain)];

    pub fn parse(name: &str) -> Result<Self> {
        let found = Self::NAMES.iter().find(|(known, _)| *known == name);
        found.map(|(_, template)| *template).ok_or_else(|| {
            Error::argument(
                "template",
                format!("'{name}'"),
                Self::NAMES.map(|(name, _)| format!("'{name}'")).join(", "),
            )
        })
    }

    /// The whole text of a turn.
    pub fn text(self, turn: &Turn) -> String {
        let date = (self == Self::Dated).then(|| date(turn)).flatten();
        let speaker = (self != Self::Plain).then_some(turn.speaker.as_deref()).flatten();
        let content = &turn.content;
        match (speaker, date) {
            (Some(speaker), Some(date)) => format!("{speaker} ({date}): {content}"),
            (Some(speaker), None) => format!("{speaker}: {content}"),
            (None, Some(date)) => format!("({date}): {content}"),
            (None, None) => content.clone(),
        }
    }

    /// The text of a turn when it is read as the context of a later one: without the date, which is the later one's too.
    pub fn context(self, turn: &Turn) -> String {
        match self {
            Self::Dated => Self::Speaker.text(turn),
            other => other.text(turn),
        }
    }
}

/// The day on which a turn was said, as people write it: `8 May, 2023`.
fn date(turn: &Turn) -> Option<String> {
    Some(DateTime::from_timestamp_micros(turn.said_at?)?.format("%-d %B, %Y").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(speaker: Option<&str>, said_at: Option<i64>) -> Turn {
        Turn {
            id: uuid::Uuid::nil(),
            session: None,
            speaker: speaker.map(str::to_owned),
            said_at,
            content: "Hello".into(),
        }
    }

    /// 2023-05-08 13:56 UTC
    const SAID: Option<i64> = Some(1_683_554_160_000_000);

    #[test]
    fn what_is_not_known_is_left_out() {
        assert_eq!(Template::Dated.text(&turn(Some("Ana"), SAID)), "Ana (8 May, 2023): Hello");
        assert_eq!(Template::Dated.text(&turn(Some("Ana"), None)), "Ana: Hello");
        assert_eq!(Template::Dated.text(&turn(None, SAID)), "(8 May, 2023): Hello");
        assert_eq!(Template::Dated.text(&turn(None, None)), "Hello");
        assert_eq!(Template::Speaker.text(&turn(Some("Ana"), SAID)), "Ana: Hello");
        assert_eq!(Template::Plain.text(&turn(Some("Ana"), SAID)), "Hello");
    }

    #[test]
    fn context_has_no_date() {
        assert_eq!(Template::Dated.context(&turn(Some("Ana"), SAID)), "Ana: Hello");
        assert_eq!(Template::Plain.context(&turn(Some("Ana"), SAID)), "Hello");
    }

    #[test]
    fn dates_before_1970_and_beyond_the_calendar() {
        assert_eq!(date(&turn(None, Some(-1))).as_deref(), Some("31 December, 1969"));
        assert_eq!(date(&turn(None, Some(i64::MAX))), None);
    }

    #[test]
    fn templates_have_names() {
        assert_eq!(Template::parse("plain").unwrap(), Template::Plain);
        assert!(Template::parse("x").unwrap_err().to_string().contains("'dated', 'speaker', 'plain'"));
    }
}
