//! What a question says of the turn that answers it: who said it, and when.

use std::collections::HashSet;

use chrono::{DateTime, Datelike, Month};

use crate::index::segment::Said;
use crate::rank::conversation::Traits;

/// A question's hints.
pub struct Hints {
    /// Its words, in lower case.
    words: HashSet<String>,
    /// The months it names in English, 1 to 12.
    months: Vec<u32>,
    /// The years it names with them.
    years: Vec<i32>,
}

impl Hints {
    pub fn of(question: &str) -> Self {
        // "may" and "march" are months only where they are written so.
        let month = |word: &str| {
            let capital = word.starts_with(|c: char| c.is_ascii_uppercase()) && word.len() >= 3;
            word.parse::<Month>().ok().filter(|_| capital).map(|month| month.number_from_month())
        };
        let year = |word: &str| word.parse::<i32>().ok().filter(|year| (1900..2100).contains(year));
        Self {
            words: words(question).map(str::to_lowercase).collect(),
            months: words(question).filter_map(month).collect(),
            years: words(question).filter_map(year).collect(),
        }
    }

    /// What they say of a turn.
    pub fn traits(&self, said: &Said) -> Traits {
        let named = |speaker: &String| words(speaker).any(|word| self.words.contains(&word.to_lowercase()));
        Traits {
            asks: asks(&said.content),
            named: said.speaker.as_ref().is_some_and(named),
            dated: said.said_at.and_then(DateTime::from_timestamp_micros).is_some_and(|at| self.name_month_of(at)),
        }
    }

    fn name_month_of(&self, at: DateTime<chrono::Utc>) -> bool {
        self.months.contains(&at.month()) && (self.years.is_empty() || self.years.contains(&at.year()))
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty())
}

/// Whether a text ends in a question mark, of whatever script, but for what may close behind it.
fn asks(text: &str) -> bool {
    let end = text.trim_end_matches(|c: char| c.is_whitespace() || "\"'”’»)]".contains(c));
    end.ends_with(['?', '？', '؟'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(speaker: &str, day: &str, content: &str) -> Said {
        let at = format!("{day}T10:00:00Z").parse::<DateTime<chrono::Utc>>().unwrap();
        Said { speaker: Some(speaker.into()), said_at: Some(at.timestamp_micros()), content: content.into() }
    }

    #[test]
    fn a_speaker_is_named_by_any_part_of_the_name() {
        let hints = Hints::of("What did grandma cook for Tomás's birthday?");
        let named = |speaker| hints.traits(&said(speaker, "2026-05-01", "Soup.")).named;
        assert!(named("Grandma Ilse") && named("Tomás") && !named("Ana"));
        assert!(!hints.traits(&Said { speaker: None, said_at: None, content: "Soup.".into() }).named);
    }

    #[test]
    fn a_month_is_named_with_or_without_its_year() {
        let dated = |question, day| Hints::of(question).traits(&said("Ana", day, "Soup.")).dated;
        assert!(dated("What did we eat in May?", "2026-05-31") && dated("And in Sep 2025?", "2025-09-01"));
        assert!(!dated("What did we eat in May?", "2026-06-01") && !dated("And in Sep 2025?", "2026-09-01"));
        assert!(!dated("What may I eat in 2026?", "2026-05-31"));
    }

    #[test]
    fn a_turn_asks_when_it_ends_so() {
        for (text, expected) in
            [("Shall we?", true), ("(“Shall we?”) ", true), ("你好吗？", true), ("Why? Because.", false), ("", false)]
        {
            assert_eq!(asks(text), expected, "{text}");
        }
    }
}
