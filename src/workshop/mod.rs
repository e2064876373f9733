//! What a worker does for another process: the runs of an evaluation, the episodes of a search.
//!
//! [`Workshop::open`] sets up a [`Setting`](crate::crew::Setting) once, [`Workshop::work`] does one task of it after another; each
//! depends on its own text and on nothing that was done before. It is the code that does the same in one process.

mod matrix;
mod search;

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use matrix::MatrixWork;

use crate::crew::{BUILD, CrewError, Shipped, Told, digest};
use crate::train::SearchWork;

/// What is done in a setting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// Runs of an evaluation; a task is an [`Errand`](crate::world::Errand), its answer a summary.
    Matrix(Box<MatrixWork>),
    /// Episodes of a search; a task is a [`Slice`](crate::train::Slice), its answer their episodes.
    Search(Box<SearchWork>),
}

/// A setting that was set up.
pub struct Workshop(Bench);

enum Bench {
    Matrix(Box<matrix::Matrix>),
    Search(Box<search::Search>),
}

impl Workshop {
    /// Sets up what `text` says, with the files it names beneath `folder`.
    ///
    /// # Errors
    /// It was told by another build, a file is not the one that is meant, or the work cannot be set up.
    pub fn open(text: &str, folder: &Path) -> Result<Workshop, CrewError> {
        let told: Told<Value> = serde_json::from_str(text).map_err(|error| CrewError(format!("a setting: {error}")))?;
        if told.build != BUILD {
            let asks = told.build;
            return Err(CrewError(format!(
                "this worker's kvtide is {BUILD}, who asks is {asks}: the wheel and the tool must be of one build on every machine"
            )));
        }
        told.files.iter().try_for_each(|file| is_meant(file, folder))?;
        let work = serde_json::from_value(told.work).map_err(|error| CrewError(format!("a setting: {error}")))?;
        Ok(Workshop(match work {
            Work::Matrix(work) => Bench::Matrix(Box::new(matrix::Matrix::new(*work, folder)?)),
            Work::Search(work) => Bench::Search(Box::new(search::Search::new(&work, folder)?)),
        }))
    }

    /// Does a task, and says what came of it as JSON.
    ///
    /// # Errors
    /// It is no task of this setting, or it has no result; done again it would fail again.
    pub fn work(&self, task: &str) -> Result<String, CrewError> {
        match &self.0 {
            Bench::Matrix(matrix) => matrix.serve(task),
            Bench::Search(search) => search.play(task),
        }
    }
}

/// The files a setting names, which whoever opens it puts beneath a folder before.
///
/// # Errors
/// It is no setting.
pub fn files(text: &str) -> Result<Vec<Shipped>, CrewError> {
    let told: Told<Value> = serde_json::from_str(text).map_err(|error| CrewError(format!("a setting: {error}")))?;
    Ok(told.files)
}

fn is_meant(file: &Shipped, folder: &Path) -> Result<(), CrewError> {
    let path = folder.join(&file.name);
    let found = digest(&path).map_err(|error| CrewError(format!("{}: {error}", path.display())))?;
    if found != file.blake3 {
        let (path, meant) = (path.display(), &file.blake3);
        return Err(CrewError(format!("{path}: its BLAKE3 is {found}, meant is {meant}: another file")));
    }
    Ok(())
}

/// An answer as it is sent.
fn answer<T: Serialize>(answer: &T) -> Result<String, CrewError> {
    serde_json::to_string(answer).map_err(|error| CrewError(error.to_string()))
}

/// A task as it was sent.
fn asked<'a, T: Deserialize<'a>>(task: &'a str) -> Result<T, CrewError> {
    serde_json::from_str(task).map_err(|error| CrewError(format!("a task: {error}")))
}

/// An error, and what it came from, in a line.
fn in_words(error: &dyn std::error::Error) -> CrewError {
    let (mut words, mut source) = (error.to_string(), error.source());
    while let Some(error) = source {
        let cause = error.to_string();
        if !words.contains(&cause) {
            words = format!("{words}: {cause}");
        }
        source = error.source();
    }
    CrewError(words)
}

#[cfg(test)]
mod tests;
