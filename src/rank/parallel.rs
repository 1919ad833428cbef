//! Work on all cores, while the call that wants it waits.

use std::panic::resume_unwind;
use std::thread;

/// Cuts `items` into as many parts as there are `threads`, of at least `least` items each, works on all of them at once, and
/// returns what became of each, in order.
///
/// The threads end with the call: a pool of them would outlive the database, and a process that forks would have one without
/// its threads. Starting one takes some ten microseconds.
pub fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    threads: usize,
    least: usize,
    work: impl Fn(&[T]) -> R + Sync,
) -> Vec<R> {
    let size = items.len().div_ceil(threads.max(1)).max(least).max(1);
    let mut parts = items.chunks(size);
    let Some(first) = parts.next() else { return Vec::new() };
    let work = &work;
    thread::scope(|scope| {
        let others: Vec<_> = parts.map(|part| scope.spawn(move || work(part))).collect();
        let mut done = vec![work(first)];
        done.extend(others.into_iter().map(|other| other.join().unwrap_or_else(|panic| resume_unwind(panic))));
        done
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_worked_on_once_and_in_order() {
        for (count, threads, least) in [(0, 2, 1), (1, 2, 1), (7, 3, 1), (7, 0, 1), (7, 100, 4), (8, 2, 1)] {
            let items: Vec<u32> = (0..count).collect();
            let parts = in_parallel(&items, threads, least, <[u32]>::to_vec);
            assert!(parts.len() <= threads.max(1), "{parts:?}");
            assert!(parts.iter().rev().skip(1).all(|part| part.len() >= least), "{parts:?}");
            assert_eq!(parts.concat(), items);
        }
    }

    #[test]
    fn a_panic_reaches_the_caller() {
        let panicked = std::panic::catch_unwind(|| in_parallel(&[1, 2], 2, 1, |part| assert_ne!(part, [2])));
        assert!(panicked.is_err());
    }
}
