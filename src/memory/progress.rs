//! How far long work has come, on a terminal.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar over `steps`, which are called `unit`; hidden when it is not wanted or nobody would see it.
pub fn bar(steps: usize, unit: &str, message: &str, wanted: bool) -> ProgressBar {
    if !wanted || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(&format!(
        "{{msg}} {{wide_bar}} {{pos}}/{{len}} {unit}, {{per_sec}}, {{eta}} left"
    ));
    let bar = ProgressBar::new(steps as u64).with_message(message.to_owned());
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
