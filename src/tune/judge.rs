//! The judgement: every policy on the part nobody has looked at, cell by cell, so that a run that was stopped goes on with the
//! next.

use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use kvtide_envs::workload::Window;
use kvtide_runtime::ActionProfile;

use super::TuneError;
use super::folder::write;
use super::heads::ChosenHeads;
use super::table::TABLE;
use crate::evaluate::{Matrix, RunRow, Watch, run_matrix};
use crate::policy::{PolicyName, PolicySpec, Subject};
use crate::world::{Draw, World};

/// Every run, one JSON object a line.
pub(super) const RESULTS: &str = "results.jsonl";
/// Every run by a drawn clock, likewise.
pub(super) const CLOCKS: &str = "clocks.jsonl";

/// Everybody who is judged: what runs today, the default, every reference, the constant and the table in `out`.
pub(super) fn subjects(
    out: &Path,
    versus: &PolicySpec,
    heads: &ChosenHeads,
) -> Result<Vec<(PolicyName, Subject)>, TuneError> {
    let profile = ActionProfile::from_name(&heads.profile).unwrap_or(ActionProfile::Watermark);
    let mut names: Vec<PolicyName> = Vec::new();
    for spec in [&PolicySpec::Default, versus, &PolicySpec::BestFixed] {
        names.push(spec.clone().into());
    }
    names.extend([
        PolicyName::best_static(profile),
        heads.constant.clone().into(),
        PolicyName::table(&out.join(TABLE)),
    ]);
    let mut subjects: Vec<(PolicyName, Subject)> = Vec::new();
    for name in names {
        // What runs today may be the default, the best constant may run today, and the best choice of a watermark alone is one.
        if subjects.iter().all(|(known, _)| *known != name) {
            let subject = Subject::load(name.spec())?;
            subjects.push((name, subject));
        }
    }
    Ok(subjects)
}

/// The matrix of a run, without the loads at which some draw has no request.
///
/// # Errors
/// There is no other load.
pub(super) fn matrix(
    world: &World,
    policies: Vec<(PolicyName, Subject)>,
    windows: &[Window],
    loads: &[f64],
    draws: u64,
) -> Result<Matrix, TuneError> {
    let seeds: Vec<u64> = (1..=draws).collect();
    let can_be_drawn = |load: f64| {
        windows
            .iter()
            .all(|window| seeds.iter().all(|&seed| world.draw(&Draw { window: Some(*window), load, seed }).is_ok()))
    };
    let kept: Vec<f64> = loads.iter().copied().filter(|load| can_be_drawn(*load)).collect();
    if kept.is_empty() {
        return Err(TuneError::NothingToJudge { name: world.trace.clone(), loads: loads.to_vec() });
    }
    Ok(Matrix { policies, windows: windows.iter().copied().map(Some).collect(), loads: kept, seeds })
}

/// Runs what is missing of `matrix` in the results in `out`, and gives all of it; `None` if stopped. What is finished is kept. By a
/// drawn clock, of which `world` says that it is one, beside the runs by others.
///
/// # Errors
/// A run has no result, or the results cannot be read or written.
pub(super) fn rows(
    world: &World,
    matrix: &Matrix,
    out: &Path,
    watch: &dyn Watch,
    stop: &AtomicBool,
) -> Result<Option<Vec<RunRow>>, TuneError> {
    let path = out.join(if world.clock_draw.is_some() { CLOCKS } else { RESULTS });
    let (mut rows, mut text) = kept(&path, matrix)?;
    rows.retain(|row| row.clock_draw == world.clock_draw);
    for &window in &matrix.windows {
        for &load in &matrix.loads {
            let name = window.map_or_else(|| "all".to_owned(), |window| window.to_string());
            if rows.iter().any(|row| row.window == name && row.load == load) {
                continue;
            }
            let cell = Matrix { windows: vec![window], loads: vec![load], ..matrix.clone() };
            let mut finished = Vec::new();
            let cells = run_matrix(world, &cell, watch, stop, &mut |of_policy| {
                finished.extend_from_slice(of_policy);
                ControlFlow::Continue(())
            })?;
            if cells == 0 {
                return Ok(None);
            }
            for row in &finished {
                text += &serde_json::to_string(row).expect("plain values");
                text.push('\n');
            }
            write(&path, text.as_bytes())?;
            rows.extend(finished);
        }
    }
    Ok(Some(rows))
}

/// The same of `matrix` without what is chosen in hindsight, by each of `clocks` drawn clocks; `None` if stopped.
///
/// # Errors
/// As [`rows`].
pub(super) fn rows_by_clocks(
    world: &World,
    matrix: &Matrix,
    clocks: u32,
    (out, watch, stop): (&Path, &dyn Watch, &AtomicBool),
) -> Result<Option<Vec<RunRow>>, TuneError> {
    let policies = matrix.policies.iter().filter(|(name, _)| !name.spec().is_hindsight()).cloned().collect();
    let matrix = Matrix { policies, ..matrix.clone() };
    let mut all = Vec::new();
    for draw in 1..=clocks {
        let Some(rows) = rows(&world.by_clock(draw), &matrix, out, watch, stop)? else { return Ok(None) };
        all.extend(rows);
    }
    Ok(Some(all))
}

/// What an earlier part of this run has left: the file is only ever written with whole cells.
fn kept(path: &Path, matrix: &Matrix) -> Result<(Vec<RunRow>, String), TuneError> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        text => text.map_err(|source| TuneError::Folder { path: path.to_owned(), source })?,
    };
    let row = |(index, line): (usize, &str)| -> Result<RunRow, TuneError> {
        let wrong = |reason: String| TuneError::Row { path: path.to_owned(), line: index + 1, reason };
        let row: RunRow = serde_json::from_str(line).map_err(|error| wrong(error.to_string()))?;
        // A table is named by what it is called, and told apart by where it lies.
        let name = matrix.policies.iter().find(|(name, _)| name.as_str() == row.policy.as_str());
        let (name, _) = name.ok_or_else(|| wrong(format!("policy {} is not judged here", row.policy)))?;
        Ok(RunRow { policy: name.clone(), ..row })
    };
    let rows = text.lines().enumerate().map(row).collect::<Result<Vec<RunRow>, TuneError>>()?;
    Ok((rows, text))
}
