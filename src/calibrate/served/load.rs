//! The load of a measured run, where it was kept: which prompts begin with the same tokens.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::error::{MeasuredError, MeasuredFault};
use super::files::TextFile;
use super::measured::{MeasuredRequest, without_position};

/// A row of the load: the form of the `LLMServingSim` bench. Other fields are passed over.
#[derive(Deserialize)]
struct Row {
    input_toks: u32,
    input_tok_ids: Vec<u32>,
}

/// Gives each request the hashes of its prompt's full blocks. Rows are matched in order, before anything is sorted.
///
/// # Errors
/// The file cannot be read, or it is the load of another run.
pub(super) fn identify(requests: &mut [MeasuredRequest], path: &Path, block_size: u32) -> Result<(), MeasuredError> {
    let file = TextFile::read(path)?;
    let mut rows = file.text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    for (number, request) in requests.iter_mut().enumerate() {
        let Some((index, line)) = rows.next() else {
            let fault = MeasuredFault::OtherLoad(format!("{number} rows; the run has more requests"));
            return Err(MeasuredError::file(&file.name, fault));
        };
        let wrong = |fault| MeasuredError::line(&file.name, index + 1, fault);
        let row: Row =
            serde_json::from_str(line).map_err(|error| wrong(MeasuredFault::Json(without_position(&error))))?;
        let lengths = [row.input_toks as usize, row.input_tok_ids.len()];
        if lengths != [request.prompt_tokens as usize; 2] {
            let [said, given] = lengths;
            return Err(wrong(MeasuredFault::OtherLoad(format!(
                "input_toks {said} and {given} input_tok_ids; the run's request {number} has a prompt of {} tokens",
                request.prompt_tokens
            ))));
        }
        request.block_hashes = block_hashes(&row.input_tok_ids, block_size);
    }
    match rows.next() {
        None => Ok(()),
        Some((index, _)) => {
            let fault = MeasuredFault::OtherLoad(format!("the run has only {} requests", requests.len()));
            Err(MeasuredError::line(&file.name, index + 1, fault))
        }
    }
}

/// Files beside a run that are looked at for its load, and how large they may be, in bytes.
const MAX_CANDIDATES: usize = 64;
const MAX_CANDIDATE_BYTES: u64 = 16 << 20;

/// JSON Lines in the folder that a run lies in, by name.
pub(super) fn beside(run: &Path) -> Vec<PathBuf> {
    let folder = run.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let is_candidate = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_small = path.metadata().is_ok_and(|about| about.is_file() && about.len() <= MAX_CANDIDATE_BYTES);
        is_small && [".jsonl", ".jsonl.gz", ".jsonl.zst"].iter().any(|ending| name.ends_with(ending))
    };
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let mut paths: Vec<PathBuf> = entries.filter(is_candidate).collect();
    paths.sort();
    paths.truncate(MAX_CANDIDATES);
    paths
}

/// BLAKE3, cut to 64 bits, over the tokens from the first to the end of each full block.
fn block_hashes(tokens: &[u32], block_size: u32) -> Vec<u64> {
    let mut hasher = blake3::Hasher::new();
    let block = |block: &[u32]| {
        for token in block {
            hasher.update(&token.to_le_bytes());
        }
        let [a, b, c, d, e, f, g, h, ..] = *hasher.finalize().as_bytes();
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    };
    tokens.chunks_exact(block_size as usize).map(block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_share_hashes_as_far_as_they_share_blocks() {
        let long: Vec<u32> = (0..70).collect();
        let mut other = long.clone();
        other[40] = 7;
        let (long, other) = (block_hashes(&long, 16), block_hashes(&other, 16));
        assert_eq!(long.len(), 4);
        assert_eq!(long[..2], other[..2]);
        assert!(long[2..].iter().zip(&other[2..]).all(|(a, b)| a != b));
    }
}
