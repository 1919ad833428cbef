//! A model directory in Hugging Face layout, and what its files say.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::adapter;
use crate::error::{Error, Result};

/// What puts a missing file of the default set-up in place.
const SETUP_HINT: &str = "`make setup` installs the default model and ONNX Runtime";

/// Where `make setup` puts models and ONNX Runtime: `$XDG_DATA_HOME/lethe`, or `~/.local/share/lethe`.
///
/// `None` when neither variable is set.
pub fn home() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let data = set("XDG_DATA_HOME").or_else(|| set("HOME").map(|home| home.join(".local/share")))?;
    Some(data.join("lethe"))
}

/// How the token states of a text become its one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    Mean,
    /// The state of the first special token.
    Cls,
}

impl Pooling {
    pub fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::Cls => "cls",
        }
    }
}

/// A model directory that has been read and holds together.
#[derive(Clone, Debug)]
pub struct ModelDirectory {
    pub path: PathBuf,
    pub graph: PathBuf,
    pub tokenizer: PathBuf,
    /// The query adapter that comes with the model.
    pub adapter: Option<PathBuf>,
    /// The last part of the path.
    pub name: String,
    /// Width of a state.
    pub dim: usize,
    /// The longest input, special tokens included.
    pub max_length: usize,
    pub pooling: Pooling,
    /// What the model wants in front of a query and of a memory (`config_sentence_transformers.json`).
    pub query_prefix: String,
    pub memory_prefix: String,
}

impl ModelDirectory {
    /// Reads the directory named by `setting`: a path, or the name of a model under [`home`]`/models`.
    pub fn read(setting: &str, what: &'static str) -> Result<Self> {
        let path = locate(setting)?;
        if !path.is_dir() {
            return Err(missing(what, &path));
        }
        let graph =
            ["onnx/model.onnx", "model.onnx"].map(|file| path.join(file)).into_iter().find(|file| file.is_file());
        let graph = graph.ok_or_else(|| missing(what, &path.join("onnx/model.onnx")))?;
        let tokenizer = path.join("tokenizer.json");
        if !tokenizer.is_file() {
            return Err(missing(what, &tokenizer));
        }
        let config =
            read_json(&path.join("config.json"), what)?.ok_or_else(|| missing(what, &path.join("config.json")))?;
        let whole = |json: &Value, key: &str| json.get(key).and_then(Value::as_u64).map(|n| n as usize);
        let broken = |cause: &str| broken(what, &path.join("config.json"), cause);
        let dim = whole(&config, "hidden_size").filter(|&dim| dim > 0).ok_or_else(|| broken("no hidden_size"))?;
        let positions =
            whole(&config, "max_position_embeddings").ok_or_else(|| broken("no max_position_embeddings"))?;
        let sentence = read_json(&path.join("sentence_bert_config.json"), what)?.unwrap_or_default();
        let max_length = whole(&sentence, "max_seq_length").unwrap_or(positions).min(positions);
        if max_length < 16 {
            return Err(broken(&format!("inputs of at most {max_length} tokens are too short to be of use")));
        }
        let prompts = read_json(&path.join("config_sentence_transformers.json"), what)?.unwrap_or_default();
        let prompt = |names: &[&str]| {
            let found = names.iter().find_map(|name| prompts.get("prompts")?.get(*name)?.as_str());
            found.unwrap_or_default().to_owned()
        };
        Ok(Self {
            pooling: pooling(&path, what)?,
            name: path.file_name().map_or_else(|| setting.to_owned(), |name| name.to_string_lossy().into_owned()),
            query_prefix: prompt(&["query"]),
            memory_prefix: prompt(&["passage", "document"]),
            adapter: Some(path.join(adapter::FILE)).filter(|file| file.is_file()),
            path,
            graph,
            tokenizer,
            dim,
            max_length,
        })
    }

    /// 16 hexadecimal digits over everything that decides what a text is encoded to.
    pub fn fingerprint(&self) -> Result<String> {
        let mut hash = Sha256::new();
        for file in [&self.graph, &self.tokenizer] {
            let bytes = fs::read(file).map_err(|error| broken("model file", file, &error.to_string()))?;
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        }
        let settings = (self.max_length, self.pooling.name(), &self.query_prefix, &self.memory_prefix);
        hash.update(format!("{settings:?}"));
        Ok(hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect())
    }
}

pub(super) fn missing(what: &'static str, path: &Path) -> Error {
    Error::MissingFile { what, path: path.to_owned(), hint: SETUP_HINT.to_owned() }
}

pub(super) fn broken(what: &'static str, path: &Path, cause: &str) -> Error {
    Error::BrokenFile { what, path: path.to_owned(), cause: cause.to_owned(), hint: SETUP_HINT.to_owned() }
}

fn locate(setting: &str) -> Result<PathBuf> {
    if setting.contains(std::path::MAIN_SEPARATOR) {
        return Ok(PathBuf::from(setting));
    }
    let models = home().map(|home| home.join("models"));
    match models {
        Some(models) if !setting.is_empty() => Ok(models.join(setting)),
        _ => Err(Error::argument(
            "the model directory",
            format!("'{setting}'"),
            "a path, or the name of a model `make setup` installed",
        )),
    }
}

fn pooling(path: &Path, what: &'static str) -> Result<Pooling> {
    let file = path.join("1_Pooling/config.json");
    let Some(config) = read_json(&file, what)? else { return Ok(Pooling::Mean) };
    let on = |key: &str| config.get(key).and_then(Value::as_bool).unwrap_or(false);
    match (on("pooling_mode_mean_tokens"), on("pooling_mode_cls_token")) {
        (true, false) => Ok(Pooling::Mean),
        (false, true) => Ok(Pooling::Cls),
        _ => Err(broken(what, &file, "only mean pooling or cls pooling is supported")),
    }
}

/// `None` when the file does not exist.
fn read_json(file: &Path, what: &'static str) -> Result<Option<Value>> {
    match fs::read(file) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| broken(what, file, &error.to_string())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(broken(what, file, &error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with a graph and a tokenizer that nobody opens, and the given configuration files.
    fn directory(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let path = std::env::temp_dir().join(format!("lethe-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        for (file, text) in [("onnx/model.onnx", "g"), ("tokenizer.json", "t")].iter().chain(files) {
            let file = path.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        path
    }

    const CONFIG: (&str, &str) = ("config.json", r#"{"hidden_size": 384, "max_position_embeddings": 512}"#);

    #[test]
    fn the_files_say_what_the_model_is() {
        let path = directory(
            "says",
            &[
                CONFIG,
                ("sentence_bert_config.json", r#"{"max_seq_length": 256}"#),
                ("1_Pooling/config.json", r#"{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}"#),
                ("config_sentence_transformers.json", r#"{"prompts": {"query": "query: ", "passage": "passage: "}}"#),
            ],
        );
        let model = ModelDirectory::read(path.to_str().unwrap(), "encoder").unwrap();
        assert_eq!((model.dim, model.max_length, model.pooling), (384, 256, Pooling::Cls));
        assert_eq!((model.query_prefix.as_str(), model.memory_prefix.as_str()), ("query: ", "passage: "));
        assert_eq!(model.fingerprint().unwrap().len(), 16);
    }

    #[test]
    fn what_is_not_said_has_a_default() {
        let path = directory("default", &[CONFIG]);
        let model = ModelDirectory::read(path.to_str().unwrap(), "encoder").unwrap();
        assert_eq!((model.max_length, model.pooling, model.query_prefix.as_str()), (512, Pooling::Mean, ""));
    }

    #[test]
    fn another_file_is_another_model() {
        let path = directory("print", &[CONFIG]);
        let print = || ModelDirectory::read(path.to_str().unwrap(), "encoder").unwrap().fingerprint().unwrap();
        let before = print();
        fs::write(path.join("tokenizer.json"), "u").unwrap();
        assert_ne!(print(), before);
    }

    #[test]
    fn errors_name_the_file_and_the_cure() {
        let absent = ModelDirectory::read("/nowhere/at/all", "encoder").unwrap_err().to_string();
        assert!(absent.contains("/nowhere/at/all") && absent.contains("make setup"), "{absent}");
        let path = directory("broken", &[("config.json", "{")]);
        let broken = ModelDirectory::read(path.to_str().unwrap(), "encoder").unwrap_err().to_string();
        assert!(broken.contains("config.json") && broken.contains("cannot be used"), "{broken}");
        fs::remove_file(path.join("tokenizer.json")).unwrap();
        let gone = ModelDirectory::read(path.to_str().unwrap(), "encoder").unwrap_err().to_string();
        assert!(gone.contains("tokenizer.json does not exist"), "{gone}");
    }
}
