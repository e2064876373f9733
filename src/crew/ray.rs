//! Workers of a Ray cluster, through `python3 -m kvtide.ray.serve ADDRESS`: a line of JSON for each thing said.
//!
//! | to it | says |
//! |---|---|
//! | `{"hello": BUILD}` | who asks |
//! | `{"setting": ID, "text": …, "files": [PATH, …]}` | what many tasks have in common |
//! | `{"number": N, "setting": ID, "task": …}` | a task |
//!
//! | from it | says |
//! |---|---|
//! | `{"ready": WORKERS}` | how many tasks can be done at once |
//! | `{"refused": WHY}` | that nothing will be done |
//! | `{"number": N, "done": …}`, `{"number": N, "failed": WHY}` | what came of a task |
//!
//! It ends when its standard input does, so that nothing is left behind however this process ends. Signals are for this process: it
//! stands in a process group of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{env, fmt, thread};

use serde::Deserialize;
use serde_json::{Value, json};

use super::{BUILD, Crew, CrewError, Order, Setting};

/// How often who waits looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(50);
/// Looks that the process has to end by itself: five seconds.
const LOOKS_TO_END: usize = 100;

/// The workers of a Ray cluster.
pub struct Ray {
    address: String,
    workers: usize,
    child: Child,
    /// `None` once there is nothing more to say.
    input: Mutex<Option<ChildStdin>>,
    heard: Arc<Heard>,
}

/// What was heard so far.
#[derive(Default)]
struct Heard {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    ready: Option<usize>,
    /// Why nothing more will be heard.
    ended: Option<String>,
    /// The last line of its standard error.
    complaint: String,
    /// Numbers of tasks that were begun and not asked for yet, by setting and task.
    begun: BTreeMap<(String, String), u64>,
    done: BTreeMap<u64, Result<Value, String>>,
    settings: BTreeSet<String>,
    next: u64,
}

/// A line.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    ready: Option<usize>,
    refused: Option<String>,
    number: Option<u64>,
    done: Option<Value>,
    failed: Option<String>,
}

impl Ray {
    /// The cluster at `address`, such as `10.0.0.1:6379`, `auto`, or `local` for one of this machine's own. `None` if `stop` was set
    /// before it answered.
    ///
    /// # Errors
    /// Python, the wheel or Ray is missing or of another build, or no cluster answers.
    pub fn start(address: &str, stop: &AtomicBool) -> Result<Option<Ray>, CrewError> {
        let python = env::var("KVTIDE_PYTHON").unwrap_or_else(|_| "python3".to_owned());
        let started = Command::new(&python)
            .args(["-m", "kvtide.ray.serve", address])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn();
        let mut child = started.map_err(|error| {
            CrewError(format!("cannot start {python}: {error}; KVTIDE_PYTHON names the Python that has kvtide[ray]"))
        })?;
        let heard = Arc::new(Heard::default());
        if let Some(output) = child.stderr.take() {
            let heard = Arc::clone(&heard);
            thread::spawn(move || heard.complaints(BufReader::new(output)));
        }
        if let Some(output) = child.stdout.take() {
            let heard = Arc::clone(&heard);
            thread::spawn(move || heard.lines(BufReader::new(output)));
        }
        let input = Mutex::new(child.stdin.take());
        let mut ray = Ray { address: address.to_owned(), workers: 1, child, input, heard };
        ray.say(&json!({"hello": BUILD}));
        let ready = ray.heard.wait(stop, |state| state.ready).map_err(|CrewError(why)| ray.not_ready(&python, &why))?;
        Ok(ready.map(|workers| {
            ray.workers = workers.max(1);
            ray
        }))
    }

    /// Why it did not come to work, as somebody can act on it.
    fn not_ready(&self, python: &str, why: &str) -> CrewError {
        let has_no_wheel = why.contains("No module named 'kvtide") || why.contains("No module named kvtide");
        let hint = if has_no_wheel {
            format!("; {python} has no kvtide wheel with kvtide.ray: pip install 'kvtide[ray]', or set KVTIDE_PYTHON")
        } else {
            String::new()
        };
        CrewError(format!("Ray at {}: {why}{hint}", self.address))
    }

    /// That it cannot be said is heard when the process's last words are.
    fn say(&self, line: &Value) {
        let mut input = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(input) = &mut *input {
            let _ = writeln!(input, "{line}").and_then(|()| input.flush());
        }
    }

    fn tell(&self, setting: &Setting) {
        self.say(&json!({"setting": setting.id, "text": setting.text, "files": setting.files}));
    }

    /// The number of a task, which is begun if it was not.
    fn number(&self, order: &Order) -> u64 {
        let Order { setting, task } = order;
        let key = (setting.id.clone(), task.clone());
        // Held until all is said: a setting before its tasks.
        let mut state = self.heard.state();
        if let Some(number) = state.begun.get(&key) {
            return *number;
        }
        let number = state.next;
        state.next += 1;
        state.begun.insert(key, number);
        let is_new = state.settings.insert(setting.id.clone());
        if is_new {
            self.tell(setting);
        }
        self.say(&json!({"number": number, "setting": setting.id, "task": task}));
        number
    }
}

impl Crew for Ray {
    fn workers(&self) -> usize {
        self.workers
    }

    fn begin(&self, order: &Order) {
        self.number(order);
    }

    fn finish(&self, order: &Order, stop: &AtomicBool) -> Result<Option<Value>, CrewError> {
        let number = self.number(order);
        let done = self.heard.wait(stop, |state| state.done.remove(&number))?;
        let key = (order.setting.id.clone(), order.task.clone());
        if done.is_some() {
            self.heard.state().begun.remove(&key);
        }
        done.transpose().map_err(CrewError)
    }
}

impl Heard {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for what `take` finds; `None` if `stop` was set before.
    fn wait<T>(&self, stop: &AtomicBool, take: impl Fn(&mut State) -> Option<T>) -> Result<Option<T>, CrewError> {
        let mut state = self.state();
        loop {
            if let Some(found) = take(&mut state) {
                return Ok(Some(found));
            }
            if let Some(why) = &state.ended {
                return Err(CrewError(why.clone()));
            }
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            state = self.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Takes in its standard output to the end.
    fn lines(&self, output: impl BufRead) {
        for line in output.lines().map_while(Result::ok) {
            let read = serde_json::from_str::<Line>(&line);
            let mut state = self.state();
            match read {
                Ok(line) => state.take(line),
                Err(error) => state.end(format!("it says {:?}: {error}", line.chars().take(99).collect::<String>())),
            }
            drop(state);
            self.changed.notify_all();
        }
        // Its last words come by another way, and may come a little later.
        thread::sleep(LOOK * 2);
        let mut state = self.state();
        let complaint = state.complaint.clone();
        state.end(if complaint.is_empty() { "it ended".to_owned() } else { format!("it ended: {complaint}") });
        drop(state);
        self.changed.notify_all();
    }

    /// Passes on its standard error: what it says itself to everybody, what Ray says to who asked for more.
    fn complaints(&self, output: impl BufRead) {
        for line in output.lines().map_while(Result::ok).filter(|line| !line.trim().is_empty()) {
            match line.strip_prefix("kvtide.ray: ") {
                Some(said) => say!("{said}"),
                None => detail!("{line}"),
            }
            self.state().complaint = line;
        }
    }
}

impl State {
    fn take(&mut self, line: Line) {
        let Line { ready, refused, number, done, failed } = line;
        self.ready = ready.or(self.ready);
        if let Some(why) = refused {
            self.end(why);
        }
        let result = failed.map(Err).or(done.map(Ok));
        if let Some((number, result)) = number.zip(result) {
            self.done.insert(number, result);
        }
    }

    /// The first reason is the one.
    fn end(&mut self, why: String) {
        self.ended.get_or_insert(why);
    }
}

/// Nothing more is said, and the process is seen to its end.
impl Drop for Ray {
    fn drop(&mut self) {
        drop(self.input.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        for _ in 0..LOOKS_TO_END {
            match self.child.try_wait() {
                Ok(None) => thread::sleep(LOOK),
                // Its last words are still on their way.
                Ok(Some(_)) | Err(_) => return thread::sleep(LOOK),
            }
        }
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }
}

impl fmt::Debug for Ray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ray").field("address", &self.address).field("workers", &self.workers).finish_non_exhaustive()
    }
}
