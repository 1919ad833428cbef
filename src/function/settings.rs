//! The settings: `SET lethe_…`. Each is declared once, with its type, default, range and meaning, and checked where it is read.

use std::path::PathBuf;

use super::arguments::choice;
use super::value::{Type, Value};
use crate::error::{Error, Result};
use crate::memory::knobs::{AdapterChoice, Fusion, Knobs};
use crate::memory::models::ModelSettings;
use crate::memory::sync::Means;
use crate::model::directory::home;
use crate::model::encoder::Encoder;
use crate::rank::conversation::Priors;
use crate::rank::evidence::TokenRule;
use crate::rank::likeness::Thresholds;
use crate::rank::suppression::{PenaltyScale, Retention};

/// A setting as DuckDB is told of it.
pub struct Setting {
    pub name: &'static str,
    pub kind: Type,
    pub default: fn() -> Value,
    allowed: Allowed,
    meaning: &'static str,
}

enum Allowed {
    Anything,
    Whole(i64, i64),
    Real(f64, f64),
    Choice(&'static [&'static str]),
}

impl Setting {
    /// The description, with the range.
    pub fn described(&self) -> String {
        match self.allowed {
            Allowed::Anything => self.meaning.to_owned(),
            Allowed::Whole(low, high) => format!("{} ({low} to {high})", self.meaning),
            Allowed::Real(low, high) => format!("{} ({low} to {high})", self.meaning),
            Allowed::Choice(names) => format!("{} ({})", self.meaning, names.join(", ")),
        }
    }

    fn check(&self, value: &Value) -> Result<()> {
        match (&self.allowed, value) {
            (Allowed::Whole(low, high), Value::BigInt(x)) if !(low..=high).contains(&x) => {
                Err(Error::argument(self.name, x, format!("{low} to {high}")))
            }
            (Allowed::Real(low, high), Value::Double(x)) if !(low..=high).contains(&x) => {
                Err(Error::argument(self.name, x, format!("{low} to {high}")))
            }
            (Allowed::Choice(names), Value::Varchar(x)) if !names.contains(&x.as_str()) => {
                Err(Error::argument(self.name, format!("'{x}'"), names.join(", ")))
            }
            _ => Ok(()),
        }
    }
}

const fn setting(
    name: &'static str,
    kind: Type,
    default: fn() -> Value,
    allowed: Allowed,
    meaning: &'static str,
) -> Setting {
    Setting { name, kind, default, allowed, meaning }
}

const MOST: i64 = 1_000_000;

#[rustfmt::skip]
pub static ALL: [Setting; 40] = [
    setting("lethe_model_directory", Type::Varchar, || "all-MiniLM-L6-v2".into(), Allowed::Anything,
        "Encoder: a model directory in Hugging Face layout, or the name of a model that make setup installed"),
    setting("lethe_onnxruntime", Type::Varchar, default_library, Allowed::Anything,
        "Path of ONNX Runtime's shared library"),
    setting("lethe_cache_directory", Type::Varchar, default_cache, Allowed::Anything,
        "Where indexes are saved for the next process; may be deleted at any time; empty: nowhere"),
    setting("lethe_reranker_directory", Type::Varchar, || "".into(), Allowed::Anything,
        "Cross-encoder: a model directory or name; empty: none, the token evidence orders"),
    setting("lethe_require_reranker", Type::Boolean, || false.into(), Allowed::Anything,
        "Fail when rerank := true and no reranker is installed, rather than say so in the column note"),
    setting("lethe_threads", Type::BigInt, || 0i64.into(), Allowed::Whole(0, 1024),
        "Threads of the models and of the search; 0: all cores"),
    setting("lethe_progress", Type::Boolean, || true.into(), Allowed::Anything,
        "Show a progress bar on a terminal while many turns are encoded"),
    setting("lethe_learn", Type::Boolean, || true.into(), Allowed::Anything,
        "Learn from retrievals, where the store learns too"),
    setting("lethe_candidates", Type::BigInt, || 300i64.into(), Allowed::Whole(1, MOST),
        "How many candidates words and vectors bring each"),
    setting("lethe_fusion", Type::Varchar, || "rrf".into(), Allowed::Choice(&["rrf", "zscore"]),
        "How the two lists become one: reciprocal rank fusion, or weighted standardised scores"),
    setting("lethe_rrf_k", Type::Double, || 60.0.into(), Allowed::Real(0.0, 10_000.0),
        "k of reciprocal rank fusion"),
    setting("lethe_word_weight", Type::Double, || 0.5.into(), Allowed::Real(0.0, 1.0),
        "Weight of the words in zscore fusion; the vectors have the rest"),
    setting("lethe_pool", Type::BigInt, || 0i64.into(), Allowed::Whole(0, MOST),
        "How many fused candidates are reranked, and never fewer than are asked for; 0: all"),
    setting("lethe_token_rule", Type::Varchar, || "idf".into(), Allowed::Choice(&["idf", "floor", "maxsim", "floor_idf"]),
        "Token evidence: weighted by rarity, the seed's floor, plain MaxSim, or floor and weights"),
    setting("lethe_token_k", Type::BigInt, || 64i64.into(), Allowed::Whole(1, MOST),
        "k of the floor: which neighbour of a query token, among all candidates' tokens, is its floor"),
    setting("lethe_rerank_budget", Type::BigInt, || 0i64.into(), Allowed::Whole(0, MOST),
        "How many of the pool, best by token evidence, a cross-encoder reads, and never fewer than are asked for; 0: all"),
    setting("lethe_rerank_threshold", Type::Double, || (-1000.0).into(), Allowed::Real(-1000.0, 1000.0),
        "If no answer within the budget reaches this logit, the cross-encoder reads the rest of the pool too"),
    setting("lethe_adapter", Type::Varchar, || "auto".into(), Allowed::Choice(&["auto", "encoder", "none"]),
        "Query adapter: the one the store trained (memory_adapt) or else the encoder's own, only the encoder's own, or none"),
    setting("lethe_answer_weight", Type::Double, || 0.5.into(), Allowed::Real(0.0, 1.0),
        "a of the conversation: how much of its question's evidence an answer is given"),
    setting("lethe_neighbour_weight", Type::Double, || 0.3.into(), Allowed::Real(0.0, 1.0),
        "β of the conversation: share of the evidence in the two turns before and after"),
    setting("lethe_asking_malus", Type::Double, || 0.02.into(), Allowed::Real(0.0, 10.0),
        "q of the conversation: what a turn that asks a question loses"),
    setting("lethe_speaker_bonus", Type::Double, || 0.02.into(), Allowed::Real(0.0, 10.0),
        "p of the conversation: what a turn gains whose speaker the query names"),
    setting("lethe_month_bonus", Type::Double, || 0.035.into(), Allowed::Real(0.0, 10.0),
        "t of the conversation: what a turn gains that was said in a month the query names"),
    setting("lethe_vector_alpha", Type::Double, || 0.0.into(), Allowed::Real(0.0, 1.0),
        "α of the token evidence: weight of the whole-turn vector in the final score"),
    setting("lethe_suppression_alpha", Type::Double, || 0.3.into(), Allowed::Real(0.0, 100.0),
        "α of forgetting: how much a suppression takes from a fused score"),
    setting("lethe_penalty", Type::Varchar, || "spread".into(), Allowed::Choice(&["spread", "raw"]),
        "Unit of that α: the standard deviation of the fused scores, or 1 as in the paper"),
    setting("lethe_eta", Type::Double, || 0.1.into(), Allowed::Real(0.0, 1.0),
        "η of forgetting: learning rate"),
    setting("lethe_learning_depth", Type::BigInt, || 30i64.into(), Allowed::Whole(1, MOST),
        "P of forgetting: how many of the pool's first are learned from"),
    setting("lethe_suppression_cap", Type::Double, || 1.0.into(), Allowed::Real(0.0, 100.0),
        "The most suppression a turn can have in a cluster"),
    setting("lethe_half_life", Type::Double, || 30.0.into(), Allowed::Real(0.0, 36_500.0),
        "Days after which a suppression counts half; 0: it never fades"),
    setting("lethe_feedback_bonus", Type::Double, || 3.0.into(), Allowed::Real(0.0, 100.0),
        "How much feedback on a question moves the answers to questions like it, in standard deviations of the scores"),
    setting("lethe_feedback_likeness", Type::Double, || 0.5.into(), Allowed::Real(0.0, 1.0),
        "θ of feedback: from which cosine on two questions are alike"),
    setting("lethe_precedent_bonus", Type::Double, || 1.0.into(), Allowed::Real(0.0, 100.0),
        "How much of a turn's score for the likest question asked before is added, in standard deviations of the scores"),
    setting("lethe_precedent_likeness", Type::Double, || 0.7.into(), Allowed::Real(0.0, 1.0),
        "θ of precedents: from which cosine on two questions are alike"),
    setting("lethe_shared_words", Type::Double, || 0.8.into(), Allowed::Real(0.0, 1.0),
        "σ of both: from which share of their words in common on, weighted by rarity, two questions are alike"),
    setting("lethe_watch", Type::Boolean, || true.into(), Allowed::Anything,
        "Leave out what was learned where it did more harm than good, as memory_stats says then"),
    setting("lethe_feedback_step", Type::Double, || 0.5.into(), Allowed::Real(0.0, 100.0),
        "What ignored feedback adds to a suppression"),
    setting("lethe_clusters", Type::BigInt, || 30i64.into(), Allowed::Whole(1, 10_000),
        "K of forgetting: cue clusters; 1: one for all questions"),
    setting("lethe_cluster_after", Type::BigInt, || 150i64.into(), Allowed::Whole(1, MOST),
        "Retrievals after which questions are first clustered; then whenever their number has doubled"),
    setting("lethe_retrievals_kept", Type::BigInt, || 10_000i64.into(), Allowed::Whole(1, MOST),
        "How many of the newest retrievals a store keeps"),
];

fn default_library() -> Value {
    home()
        .map_or_else(String::new, |home| home.join("onnxruntime/libonnxruntime.so").to_string_lossy().into_owned())
        .into()
}

fn default_cache() -> Value {
    let directory = |variable: &str| std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = directory("XDG_CACHE_HOME").or_else(|| Some(directory("HOME")?.join(".cache")));
    cache.map_or_else(String::new, |cache| cache.join("lethe/index").to_string_lossy().into_owned()).into()
}

/// The settings of one caller, checked.
#[derive(Clone, Debug)]
pub struct Settings {
    pub models: ModelSettings,
    /// Where indexes are saved; `None`: nowhere.
    pub cache: Option<PathBuf>,
    pub knobs: Knobs,
    pub require_reranker: bool,
    pub progress: bool,
    pub learn: bool,
}

impl Settings {
    /// Reads every setting through `read`, which gives `None` for one that is not registered.
    pub fn read(read: &dyn Fn(&str) -> Option<Value>) -> Result<Self> {
        let raw = Raw::read(read)?;
        let threads = match raw.count("lethe_threads")? {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        let shared = raw.real("lethe_shared_words")?;
        let thresholds = |name| Ok::<_, Error>(Thresholds { cosine: raw.real(name)?, shared });
        Ok(Self {
            models: ModelSettings {
                encoder: raw.text("lethe_model_directory")?,
                reranker: raw.text("lethe_reranker_directory")?,
                onnxruntime: PathBuf::from(raw.text("lethe_onnxruntime")?),
                threads,
            },
            cache: Some(raw.text("lethe_cache_directory")?).filter(|path| !path.is_empty()).map(PathBuf::from),
            knobs: Knobs {
                candidates: raw.count("lethe_candidates")?,
                fusion: choice("lethe_fusion", &raw.text("lethe_fusion")?, &Fusion::NAMES)?,
                rrf_k: raw.real("lethe_rrf_k")?,
                word_weight: raw.real("lethe_word_weight")?,
                pool: Some(raw.count("lethe_pool")?).filter(|&pool| pool > 0),
                token_rule: choice("lethe_token_rule", &raw.text("lethe_token_rule")?, &TokenRule::NAMES)?,
                priors: Priors {
                    answer: raw.real("lethe_answer_weight")?,
                    neighbours: raw.real("lethe_neighbour_weight")?,
                    asking: raw.real("lethe_asking_malus")?,
                    speaker: raw.real("lethe_speaker_bonus")?,
                    month: raw.real("lethe_month_bonus")?,
                },
                rerank_budget: Some(raw.count("lethe_rerank_budget")?).filter(|&budget| budget > 0),
                rerank_threshold: raw.real("lethe_rerank_threshold")?,
                adapter: choice("lethe_adapter", &raw.text("lethe_adapter")?, &AdapterChoice::NAMES)?,
                token_k: raw.count("lethe_token_k")?,
                vector_alpha: raw.real("lethe_vector_alpha")?,
                suppression_alpha: raw.real("lethe_suppression_alpha")?,
                penalty: choice("lethe_penalty", &raw.text("lethe_penalty")?, &PenaltyScale::NAMES)?,
                eta: raw.real("lethe_eta")?,
                learning_depth: raw.count("lethe_learning_depth")?,
                retention: Retention {
                    cap: raw.real("lethe_suppression_cap")?,
                    half_life_days: raw.real("lethe_half_life")?,
                },
                feedback_bonus: raw.real("lethe_feedback_bonus")?,
                precedent_bonus: raw.real("lethe_precedent_bonus")?,
                feedback_likeness: thresholds("lethe_feedback_likeness")?,
                precedent_likeness: thresholds("lethe_precedent_likeness")?,
                watch: raw.flag("lethe_watch")?,
                feedback_step: raw.real("lethe_feedback_step")?,
                clusters: raw.count("lethe_clusters")?,
                cluster_after: raw.count("lethe_cluster_after")?,
                retrievals_kept: raw.count("lethe_retrievals_kept")?,
            },
            require_reranker: raw.flag("lethe_require_reranker")?,
            progress: raw.flag("lethe_progress")?,
            learn: raw.flag("lethe_learn")?,
        })
    }

    /// What a synchronisation is done with.
    pub fn means<'a>(&'a self, encoder: &'a Encoder) -> Means<'a> {
        Means { encoder, cache: self.cache.as_deref(), threads: self.models.threads, progress: self.progress }
    }
}

/// Values by name, each within its range.
struct Raw(Vec<(&'static str, Value)>);

impl Raw {
    fn read(read: &dyn Fn(&str) -> Option<Value>) -> Result<Self> {
        let values = ALL.iter().map(|setting| {
            let value = match read(setting.name) {
                // RESET, or SET … = NULL.
                None | Some(Value::Null) => (setting.default)(),
                Some(value) => value,
            };
            setting.check(&value)?;
            Ok((setting.name, value))
        });
        values.collect::<Result<_>>().map(Self)
    }

    fn get<T>(&self, name: &str, as_type: impl Fn(&Value) -> Option<T>) -> Result<T> {
        let value = self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| value);
        value.and_then(as_type).ok_or_else(|| Error::Internal(format!("setting {name} is {value:?}")))
    }

    fn text(&self, name: &str) -> Result<String> {
        self.get(name, |value| if let Value::Varchar(x) = value { Some(x.clone()) } else { None })
    }

    fn count(&self, name: &str) -> Result<usize> {
        self.get(name, |value| if let Value::BigInt(x) = value { usize::try_from(*x).ok() } else { None })
    }

    fn real(&self, name: &str) -> Result<f64> {
        self.get(name, |value| if let Value::Double(x) = value { Some(*x) } else { None })
    }

    fn flag(&self, name: &str) -> Result<bool> {
        self.get(name, |value| if let Value::Boolean(x) = value { Some(*x) } else { None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_allowed() {
        let settings = Settings::read(&|_| None).unwrap();
        assert_eq!(settings.knobs.token_rule, TokenRule::Idf);
        assert_eq!(settings.knobs.pool, None);
        assert!(settings.models.threads >= 1);
    }

    #[test]
    fn a_value_out_of_range_is_refused_with_the_range() {
        let read = |name: &str, value: Value| {
            let name = name.to_owned();
            move |asked: &str| (asked == name).then(|| value.clone())
        };
        let refused = |name, value| Settings::read(&read(name, value)).unwrap_err().to_string();
        assert_eq!(refused("lethe_candidates", Value::BigInt(0)), "lethe_candidates is 0; allowed: 1 to 1000000");
        assert_eq!(refused("lethe_eta", Value::Double(f64::NAN)), "lethe_eta is NaN; allowed: 0 to 1");
        assert_eq!(
            refused("lethe_token_rule", "idff".into()),
            "lethe_token_rule is 'idff'; allowed: idf, floor, maxsim, floor_idf"
        );
    }

    #[test]
    fn choices_are_those_the_code_knows() {
        let choices = |name: &str| match ALL.iter().find(|s| s.name == name).map(|s| &s.allowed) {
            Some(Allowed::Choice(names)) => names.to_vec(),
            _ => Vec::new(),
        };
        assert_eq!(choices("lethe_token_rule"), TokenRule::NAMES.map(|(name, _)| name));
        assert_eq!(choices("lethe_fusion"), Fusion::NAMES.map(|(name, _)| name));
        assert_eq!(choices("lethe_penalty"), PenaltyScale::NAMES.map(|(name, _)| name));
    }
}
