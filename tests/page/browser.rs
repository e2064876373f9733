//! A headless Chromium, told what to do through a pipe: the `DevTools` protocol, a JSON object a message, zero bytes between them
//! (<https://chromedevtools.github.io/devtools-protocol/>).

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

/// What it may be called.
const PROGRAMS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// What a page is shown on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// A screen, so many CSS pixels wide.
    Screen(u32),
    /// A phone's, of the same width whatever the page asks for.
    Phone(u32),
    /// A sheet of paper, so many CSS pixels wide between its margins.
    Paper(u32),
}

/// One browser with one page.
pub struct Browser {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    messages: u64,
    session: Option<String>,
    _profile: TempDir,
}

impl Browser {
    /// `None` if there is no Chromium.
    pub fn start() -> Option<Browser> {
        let folders = env::var_os("PATH")?;
        let is_there = |name: &&str| env::split_paths(&folders).any(|folder| folder.join(name).is_file());
        let program = PROGRAMS.into_iter().find(is_there)?;
        let profile = tempfile::tempdir().unwrap();
        // It reads from the fourth file and writes to the fifth.
        let script = "exec \"$0\" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars \
            --no-first-run --disable-background-networking --force-color-profile=srgb --remote-debugging-pipe \
            --user-data-dir=\"$1\" about:blank 3<&0 4>&1 </dev/null >/dev/null 2>/dev/null";
        let mut child = Command::new("sh")
            .args(["-c", script, program])
            .arg(profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut browser = Browser { child, to, from, messages: 0, session: None, _profile: profile };
        let target = browser.call("Target.createTarget", &json!({"url": "about:blank"}))["targetId"].take();
        let attached = browser.call("Target.attachToTarget", &json!({"targetId": target, "flatten": true}));
        browser.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        browser.call("Page.enable", &json!({}));
        Some(browser)
    }

    /// What a method answers.
    fn call(&mut self, method: &str, params: &Value) -> Value {
        self.messages += 1;
        let mut message = json!({"id": self.messages, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        write!(self.to, "{message}\0").unwrap();
        loop {
            let mut said = self.said();
            if said["id"] == self.messages {
                assert!(said.get("error").is_none(), "{method}: {said}");
                return said["result"].take();
            }
        }
    }

    fn said(&mut self) -> Value {
        let mut bytes = Vec::new();
        self.from.read_until(0, &mut bytes).unwrap();
        assert_eq!(bytes.pop(), Some(0), "chromium has ended");
        serde_json::from_slice(&bytes).unwrap()
    }

    /// Shows a file on `medium`, in the light or in the dark.
    pub fn show(&mut self, file: &Path, medium: Medium, is_dark: bool) {
        let (name, width, is_phone) = match medium {
            Medium::Screen(width) => ("screen", width, false),
            Medium::Phone(width) => ("screen", width, true),
            Medium::Paper(width) => ("print", width, false),
        };
        let size = json!({"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": is_phone});
        self.call("Emulation.setDeviceMetricsOverride", &size);
        let scheme = if is_dark { "dark" } else { "light" };
        let features = [json!({"name": "prefers-color-scheme", "value": scheme})];
        self.call("Emulation.setEmulatedMedia", &json!({"media": name, "features": features}));
        self.call("Page.navigate", &json!({"url": format!("file://{}", file.display())}));
        while self.said()["method"] != "Page.loadEventFired" {}
    }

    /// Whether pages may run scripts of their own.
    pub fn let_scripts_run(&mut self, may: bool) {
        self.call("Emulation.setScriptExecutionDisabled", &json!({"value": !may}));
    }

    /// What an expression comes to.
    pub fn value(&mut self, expression: &str) -> Value {
        let asked = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let mut answer = self.call("Runtime.evaluate", &asked);
        assert!(answer.get("exceptionDetails").is_none(), "{answer}");
        answer["result"]["value"].take()
    }

    /// Presses a key that does what it does by itself.
    pub fn press(&mut self, key: &str, text: &str, code: u32) {
        for kind in ["keyDown", "keyUp"] {
            let event = json!({"type": kind, "key": key, "code": key, "text": text, "windowsVirtualKeyCode": code});
            self.call("Input.dispatchKeyEvent", &event);
        }
    }

    /// All of the page as a PNG.
    pub fn picture(&mut self) -> Vec<u8> {
        let all = json!({"format": "png", "captureBeyondViewport": true});
        base64(self.call("Page.captureScreenshot", &all)["data"].as_str().unwrap())
    }

    /// The page on A4, as a PDF with its headings as the list that readers show beside it.
    pub fn pdf(&mut self) -> Vec<u8> {
        let page = json!({"paperWidth": 8.27, "paperHeight": 11.69, "preferCSSPageSize": true, "printBackground": false,
            "generateTaggedPDF": true, "generateDocumentOutline": true});
        base64(self.call("Page.printToPDF", &page)["data"].as_str().unwrap())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// RFC 4648, section 4.
fn base64(text: &str) -> Vec<u8> {
    let digit = |letter: u8| match letter {
        b'A'..=b'Z' => u32::from(letter - b'A'),
        b'a'..=b'z' => u32::from(letter - b'a') + 26,
        b'0'..=b'9' => u32::from(letter - b'0') + 52,
        b'+' => 62,
        _ => 63,
    };
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for four in text.as_bytes().chunks(4) {
        let letters = four.iter().take_while(|letter| **letter != b'=').count();
        let group = four.iter().take(letters).fold(0, |sum, letter| sum << 6 | digit(*letter)) << (6 * (4 - letters));
        bytes.extend_from_slice(&group.to_be_bytes()[1..letters]);
    }
    bytes
}

#[test]
fn what_comes_in_base64_is_read() {
    assert_eq!(
        ["Zm9vYmFy", "Zm9vYmE=", "Zm9vYg==", "+/8=", ""].map(base64),
        [b"foobar".to_vec(), b"fooba".to_vec(), b"foob".to_vec(), vec![0xfb, 0xff], vec![]]
    );
}
