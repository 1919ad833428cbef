//! The floors of the house, as rules: imports go down only, `unsafe` and each host library stay where they belong.
//!
//! Reads the sources as text, so it says what a reader would see.

use std::fs;
use std::path::{Path, PathBuf};

/// Each floor with the floors it may import from. `error` is everyone's but `rank`'s.
const FLOORS: [(&str, &[&str]); 6] = [
    ("rank", &["rank"]),
    ("model", &["model", "rank", "error"]),
    ("index", &["index", "rank", "error"]),
    ("store", &["store", "rank", "error"]),
    ("memory", &["memory", "store", "index", "model", "rank", "error"]),
    ("function", &["function", "memory", "store", "index", "model", "rank", "error"]),
];

/// Who may name a crate that ties us to a host, a file format or a model.
const HOSTS: [(&str, &[&str]); 5] = [
    ("duckdb::", &["store", "memory", "function", "error"]),
    ("ort::", &["model"]),
    ("tokenizers::", &["model"]),
    ("tantivy::", &["index", "error"]),
    ("linfa", &["rank"]),
];

/// The borrowed instance; the host's callbacks; values across the C API. Each carries its argument.
const UNSAFE: [&str; 3] = ["src/store/instance.rs", "src/function/host.rs", "src/function/value.rs"];

fn sources() -> Vec<(PathBuf, String)> {
    // Asked when the test runs: a target directory that checkouts share may hold another one's build of it.
    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap());
    let mut found = Vec::new();
    let mut folders = vec![root.join("src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path.strip_prefix(&root).unwrap().to_owned(), text));
            }
        }
    }
    assert!(found.len() > 20, "found only {} source files", found.len());
    found
}

/// The code of a file: no comments, and nothing of its test module.
fn code(text: &str) -> String {
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

fn floor(path: &Path) -> String {
    path.components().nth(1).unwrap().as_os_str().to_string_lossy().trim_end_matches(".rs").to_owned()
}

#[test]
fn imports_go_down_only() {
    for (path, text) in sources() {
        let Some((_, below)) = FLOORS.iter().find(|(name, _)| *name == floor(&path)) else { continue };
        for (place, _) in code(&text).match_indices("crate::") {
            let rest = &code(&text)[place + "crate::".len()..];
            let target: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            assert!(below.contains(&target.as_str()), "{} imports crate::{target}", path.display());
        }
    }
}

#[test]
fn hosts_are_named_on_their_floors_only() {
    for (path, text) in sources() {
        for (host, floors) in HOSTS {
            let code = code(&text);
            let starts_a_name = |place: usize| !code[..place].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            let named = code.match_indices(host).any(|(place, _)| starts_a_name(place));
            assert!(!named || floors.contains(&floor(&path).as_str()), "{} names {host}", path.display());
        }
    }
}

#[test]
fn unsafe_stays_in_three_files() {
    let holding: Vec<String> = sources()
        .into_iter()
        .filter(|(_, text)| code(text).split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe"))
        .map(|(path, _)| path.to_string_lossy().into_owned())
        .collect();
    assert!(holding.iter().all(|path| UNSAFE.contains(&path.as_str())), "{holding:?}");
    assert_eq!(holding.len(), UNSAFE.len(), "{holding:?}");
}

/// A connection kept past its call keeps the user's file open after he closed it.
#[test]
fn nobody_keeps_a_connection() {
    for (path, text) in sources() {
        for line in code(&text).lines().map(str::trim) {
            let is_field = line.ends_with(',') && line.contains(": ") && !line.contains('(') && !line.contains('&');
            let kept =
                is_field && line.contains("Connection") || line.starts_with("static") && line.contains("Connection");
            assert!(!kept && !line.contains(".try_clone()"), "{}: {line}", path.display());
        }
    }
}

#[test]
fn nothing_panics_on_what_came_from_outside() {
    for (path, text) in sources() {
        for call in [".unwrap()", ".expect(", "panic!(", "unreachable!(", "todo!(", "unimplemented!("] {
            assert!(!code(&text).contains(call), "{} has {call}", path.display());
        }
    }
}
