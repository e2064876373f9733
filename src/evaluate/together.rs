//! Cells that other processes serve: several are waited for at once, and handed over one after the other.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use super::matrix::{Cell, Finished, MatrixError, OnFinished};
use super::row::{RunRow, TriedRow};

/// Cells waited for at once. Each has a thread that does nothing but wait, and keeps what was served until it is handed over.
const AT_ONCE: usize = 32;
/// How often who waits looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(50);

/// Runs a cell until it is done or the flag is set, and hands over what comes of it; whether it was done.
pub(super) type RunCell<'a> = &'a (dyn Fn(Cell, &AtomicBool, OnFinished<'_>) -> Result<bool, MatrixError> + Sync);

/// What comes of a cell, piece by piece.
enum Piece {
    Run {
        row: Box<RunRow>,
        is_kept: bool,
    },
    Tried(TriedRow),
    /// That was all, or it was interrupted, or it failed.
    End(Result<bool, MatrixError>),
}

/// Runs `cells` side by side and hands over what comes of them as if they had been run one after the other. Returns how many were
/// finished.
///
/// # Errors
/// That of the first cell that has one; what is before it has been handed over.
pub(super) fn together(
    cells: &[Cell],
    stop: &AtomicBool,
    run: RunCell<'_>,
    on_finished: OnFinished<'_>,
) -> Result<usize, MatrixError> {
    let (senders, receivers): (Vec<Sender<Piece>>, Vec<Receiver<Piece>>) =
        cells.iter().map(|_| mpsc::channel()).unzip();
    let (next, ended) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for _ in 0..AT_ONCE.min(cells.len()) {
            let (senders, next, ended) = (senders.clone(), &next, &ended);
            scope.spawn(move || {
                while let place = next.fetch_add(1, Ordering::Relaxed)
                    && let Some(sender) = senders.get(place)
                {
                    let result = run(cells[place], ended, &mut |finished| say(sender, finished));
                    let _ = sender.send(Piece::End(result));
                }
            });
        }
        drop(senders);
        let finished = in_turn(&receivers, (stop, &ended), on_finished);
        ended.store(true, Ordering::Relaxed);
        finished
    })
}

fn say(sender: &Sender<Piece>, finished: Finished<'_>) -> ControlFlow<()> {
    let piece = match finished {
        Finished::Run { row, is_kept } => Piece::Run { row: Box::new(row.clone()), is_kept },
        Finished::Tried(row) => Piece::Tried(row.clone()),
    };
    if sender.send(piece).is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
}

/// Hands over what the cells say, each after those before it; `ended` is set once `stop` is.
fn in_turn(
    cells: &[Receiver<Piece>],
    (stop, ended): (&AtomicBool, &AtomicBool),
    on_finished: OnFinished<'_>,
) -> Result<usize, MatrixError> {
    for (finished, cell) in cells.iter().enumerate() {
        loop {
            if stop.load(Ordering::Relaxed) {
                ended.store(true, Ordering::Relaxed);
            }
            let handed = match cell.recv_timeout(LOOK) {
                Ok(Piece::Run { row, is_kept }) => on_finished(Finished::Run { row: &row, is_kept }),
                Ok(Piece::Tried(row)) => on_finished(Finished::Tried(&row)),
                Ok(Piece::End(Ok(true))) => break,
                Ok(Piece::End(Err(error))) => return Err(error),
                Ok(Piece::End(Ok(false))) | Err(RecvTimeoutError::Disconnected) => return Ok(finished),
                Err(RecvTimeoutError::Timeout) => ControlFlow::Continue(()),
            };
            if handed.is_break() {
                return Ok(finished);
            }
        }
    }
    Ok(cells.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells() -> Vec<Cell> {
        [0.5, 1.0, 1.5].map(|load| Cell { window: None, load }).to_vec()
    }

    fn row(cell: Cell, seed: u64) -> RunRow {
        RunRow::sample("default", cell.load, seed, 0.5)
    }

    #[test]
    fn whatever_ends_first_the_order_is_that_of_the_cells() {
        let (left, stop) = (AtomicUsize::new(3), AtomicBool::new(false));
        let mut handed = Vec::new();
        let finished = together(
            &cells(),
            &stop,
            &|cell, _, each| {
                // The last cell ends first.
                while left.load(Ordering::SeqCst) != (cell.load * 2.0) as usize {
                    thread::yield_now();
                }
                for seed in 0..2 {
                    let _ = each(Finished::Run { row: &row(cell, seed), is_kept: false });
                }
                left.fetch_sub(1, Ordering::SeqCst);
                Ok(true)
            },
            &mut |finished| {
                if let Finished::Run { row, .. } = finished {
                    handed.push((row.load, row.seed));
                }
                ControlFlow::Continue(())
            },
        );
        assert_eq!(finished.unwrap(), 3);
        assert_eq!(handed, [(0.5, 0), (0.5, 1), (1.0, 0), (1.0, 1), (1.5, 0), (1.5, 1)]);
    }

    #[test]
    fn who_stops_is_told_how_many_were_finished() {
        let stop = AtomicBool::new(false);
        let waits = |cell: Cell, ended: &AtomicBool, each: OnFinished<'_>| {
            let _ = each(Finished::Run { row: &row(cell, 1), is_kept: false });
            while cell.load > 0.5 && !ended.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            Ok(cell.load <= 0.5)
        };
        let mut handed = 0;
        let finished = together(&cells(), &stop, &waits, &mut |_| {
            handed += 1;
            stop.store(handed == 2, Ordering::Relaxed);
            ControlFlow::Continue(())
        });
        assert_eq!((finished.unwrap(), handed), (1, 2));
        let broken = together(&cells(), &AtomicBool::new(false), &waits, &mut |_| ControlFlow::Break(()));
        assert_eq!(broken.unwrap(), 0);
    }
}
