//! Ctrl-C, for work that takes longer than anybody wants to wait.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::SigId;
use signal_hook::consts::SIGINT;

use crate::error::{Error, Result};

/// Watches for Ctrl-C as long as it lives, beside the host's own handler.
///
/// In a host without one Ctrl-C ends the process, and it shall go on doing so: there nothing is watched, since a handler cannot
/// be taken away again.
pub struct Interrupt {
    flag: Arc<AtomicBool>,
    watch: Option<SigId>,
}

impl Interrupt {
    pub fn watch() -> Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        if !is_caught(&fs::read_to_string("/proc/self/status").unwrap_or_default()) {
            return Ok(Self { flag, watch: None });
        }
        let watch = signal_hook::flag::register(SIGINT, flag.clone())
            .map_err(|error| Error::Internal(format!("Ctrl-C cannot be watched for: {error}")))?;
        Ok(Self { flag, watch: Some(watch) })
    }

    pub fn came(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        self.watch.map(signal_hook::low_level::unregister);
    }
}

/// Whether the process has a handler for Ctrl-C, by what Linux says of it: a mask of the signals that are caught, in hexadecimal.
fn is_caught(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (SIGINT - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_counts_signals_from_one() {
        assert!(is_caught("Name:\tx\nSigIgn:\t0\nSigCgt:\t0000000000000002\n"));
        assert!(is_caught("SigCgt:\t0000000100000482\n"));
        assert!(!is_caught("SigCgt:\t0000000000000001\n") && !is_caught("SigCgt:\tx\n") && !is_caught(""));
    }

    #[test]
    fn it_is_noticed_once_it_came_beside_the_handler_of_the_host() {
        let host = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(SIGINT, host.clone()).unwrap();
        let interrupt = Interrupt::watch().unwrap();
        assert!(!interrupt.came());
        signal_hook::low_level::raise(SIGINT).unwrap();
        assert!(interrupt.came() && host.load(Ordering::Relaxed));
        assert!(!Interrupt::watch().unwrap().came());
    }
}
