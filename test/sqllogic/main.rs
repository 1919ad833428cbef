//! Runs the SQL tests: each file of test/sql against a fresh DuckDB with the extension loaded.
//!
//! ```text
//! LETHE_PYTHON=…/bin/python LETHE_EXTENSION=build/lethe.duckdb_extension cargo run -p sqllogic [-- part of a file's name]
//! ```
//!
//! DuckDB runs in a process of its own, behind `test/python/engine.py`: which version is a matter of which Python, and a crash
//! or a lock is one file's. Column types are checked: T text, I whole numbers, R other numbers. A file may switch on
//! `control substitution on` and name the repository's folder as ${REPOSITORY}.

use std::env;
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::Instant;

use serde_json::{Value, json};
use sqllogictest::{DB, DBOutput, DefaultColumnType, Record, Runner, parse_file, strict_column_validator};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What went wrong with a statement, as DuckDB or the engine says it.
#[derive(Debug)]
struct Refused(String);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Refused {}

/// A process that runs one statement a line.
struct Engine {
    process: Child,
    /// Closed before the process is waited for: that is how it knows that it may end.
    statements: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Engine {
    fn start(repository: &Path) -> std::result::Result<Self, Refused> {
        let engine = repository.join("test/python/engine.py");
        let python = variable("LETHE_PYTHON")?;
        let started = Command::new(&python).arg(&engine).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut process = started.map_err(|error| Refused(format!("{python}: {error}")))?;
        let pipes = process.stdin.take().zip(process.stdout.take());
        let (statements, answers) = pipes.ok_or_else(|| Refused("the engine has no pipes".into()))?;
        Ok(Self { process, statements: Some(statements), answers: BufReader::new(answers) })
    }

    fn ask(&mut self, sql: &str) -> Result<Value> {
        let statements = self.statements.as_mut().ok_or("the engine was shut down")?;
        writeln!(statements, "{}", json!({ "sql": sql }))?;
        statements.flush()?;
        let mut answer = String::new();
        if self.answers.read_line(&mut answer)? == 0 {
            return Err(format!("the engine is gone: {}", self.process.wait()?).into());
        }
        Ok(serde_json::from_str(&answer)?)
    }
}

impl DB for Engine {
    type Error = Refused;
    type ColumnType = DefaultColumnType;

    fn run(&mut self, sql: &str) -> std::result::Result<DBOutput<DefaultColumnType>, Refused> {
        let answer = self.ask(sql).map_err(|error| Refused(error.to_string()))?;
        if let Some(error) = answer["error"].as_str() {
            return Err(Refused(error.to_owned()));
        }
        let texts = |value: &Value| -> Vec<String> {
            value.as_array().into_iter().flatten().map(|text| text.as_str().unwrap_or_default().to_owned()).collect()
        };
        let kind = |name: &String| match name.as_str() {
            "I" => DefaultColumnType::Integer,
            "R" => DefaultColumnType::FloatingPoint,
            _ => DefaultColumnType::Text,
        };
        Ok(DBOutput::Rows {
            types: texts(&answer["columns"]).iter().map(kind).collect(),
            rows: answer["rows"].as_array().into_iter().flatten().map(texts).collect(),
        })
    }

    fn engine_name(&self) -> &str {
        "duckdb"
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        drop(self.statements.take());
        let _ = self.process.wait();
    }
}

fn variable(name: &str) -> std::result::Result<String, Refused> {
    env::var(name).map_err(|_| Refused(format!("{name} is not set; `make test-sql` sets it")))
}

/// The test files, sorted; with a part of a name, only those that contain it.
fn files(folder: &Path, part: Option<&str>) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in folder.read_dir()? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.extension().is_some_and(|extension| extension == "test") && part.is_none_or(|part| name.contains(part))
        {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Runs one file, and says how many records it has.
fn run(repository: &Path, file: &Path) -> Result<usize> {
    let is_test =
        |record: &Record<DefaultColumnType>| matches!(record, Record::Statement { .. } | Record::Query { .. });
    let records = parse_file(file)?.into_iter().filter(is_test).count();
    if records == 0 {
        return Err("it holds no statement and no query".into());
    }
    let mut runner = Runner::new(|| async { Engine::start(repository) });
    runner.with_column_validator(strict_column_validator);
    runner.set_var("REPOSITORY".into(), repository.to_string_lossy().into_owned());
    runner.run_file(file)?;
    Ok(records)
}

fn run_all() -> Result<bool> {
    // Asked when it runs: a target directory that two checkouts share keeps what it was when it was built.
    let here = variable("CARGO_MANIFEST_DIR")?;
    let repository = Path::new(&here).join("../..").canonicalize()?;
    for name in ["LETHE_PYTHON", "LETHE_EXTENSION"] {
        variable(name)?;
    }
    let files = files(&repository.join("test/sql"), env::args().nth(1).as_deref())?;
    if files.is_empty() {
        return Err("no test file was found in test/sql".into());
    }
    let mut failed = 0;
    for file in &files {
        let name = file.strip_prefix(&repository)?.display();
        let started = Instant::now();
        match run(&repository, file) {
            Ok(records) => println!("ok      {name} ({records} records, {:.1} s)", started.elapsed().as_secs_f64()),
            Err(error) => {
                failed += 1;
                println!("FAILED  {name}\n{error}");
            }
        }
    }
    println!("{} passed, {failed} failed", files.len() - failed);
    Ok(failed == 0)
}

fn main() -> ExitCode {
    match run_all() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("sqllogic: {error}");
            ExitCode::FAILURE
        }
    }
}
