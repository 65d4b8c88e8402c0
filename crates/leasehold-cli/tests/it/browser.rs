//! A real browser without a window, steered through a pipe (Chrome's DevTools protocol).

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use leasehold_testkit::process::TestProcess;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Names the browser.
const VARIABLE: &str = "LEASEHOLD_CHROMIUM";
const PROGRAMS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

pub(crate) struct Browser {
    // Before its folder goes.
    _process: TestProcess,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    calls: u64,
    session: Option<String>,
    /// What it told without being asked.
    told: Vec<Value>,
    _dir: TempDir,
}

impl Browser {
    /// Starts it with an empty page. `evil.example` and all names below it are this machine.
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let named = std::env::var_os(VARIABLE).map(|name| name.to_string_lossy().into_owned());
        let program = named.or_else(|| {
            let is_there = |it: &&&str| Command::new(it).arg("--version").output().is_ok();
            PROGRAMS.iter().find(is_there).map(|it| (*it).to_owned())
        });
        let program = program
            .unwrap_or_else(|| panic!("no browser: install chromium, or name one in {VARIABLE}"));
        let mut command = Command::new("sh");
        // The browser listens on file 3 and answers on file 4.
        command.args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1", "sh", &program]);
        command.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"]);
        command.args([
            "--disable-dev-shm-usage",
            "--remote-debugging-pipe",
            "--window-size=1200,600",
        ]);
        command.arg("--host-resolver-rules=MAP *.example 127.0.0.1");
        command.arg(format!("--user-data-dir={}", dir.path().display())).arg("about:blank");
        command.env("HOME", dir.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = TestProcess::spawn(command).unwrap();
        let to = process.child().stdin.take().unwrap();
        let from = BufReader::new(process.child().stdout.take().unwrap());
        let (session, told) = (None, Vec::new());
        let mut browser = Self { _process: process, to, from, calls: 0, session, told, _dir: dir };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let target = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", target);
        browser.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser.call("Page.setLifecycleEventsEnabled", json!({ "enabled": true }));
        browser
    }

    fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.calls += 1;
        let mut call = json!({ "id": self.calls, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            call["sessionId"] = Value::from(session.as_str());
        }
        self.to.write_all(format!("{call}\0").as_bytes()).unwrap();
        loop {
            let answer = self.read();
            if answer["id"] != self.calls {
                self.told.push(answer);
            } else if answer["error"].is_null() {
                return answer["result"].clone();
            } else {
                panic!("{method}: {}", answer["error"]);
            }
        }
    }

    /// What it says next.
    fn read(&mut self) -> Value {
        let mut said = Vec::new();
        self.from.read_until(0, &mut said).unwrap();
        assert_eq!(said.pop(), Some(0), "the browser has ended");
        serde_json::from_slice(&said).unwrap()
    }

    /// Goes to a page, and waits until all of it is there.
    pub(crate) fn open(&mut self, url: &str) {
        let page = self.call("Page.navigate", json!({ "url": url }));
        assert_eq!(page["errorText"], Value::Null, "{url}");
        let is_there = |told: &Value| {
            let of = &told["params"];
            told["method"] == "Page.lifecycleEvent"
                && of["name"] == "load"
                && of["loaderId"] == page["loaderId"]
        };
        while !self.told.iter().any(is_there) {
            let told = self.read();
            self.told.push(told);
        }
    }

    /// What an expression of the page's is.
    pub(crate) fn ask(&mut self, expression: &str) -> Value {
        let asked =
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let answer = self.call("Runtime.evaluate", asked);
        if let Some(wrong) = answer.get("exceptionDetails") {
            panic!("{expression}: {wrong}");
        }
        answer["result"]["value"].clone()
    }

    /// Types into what has the focus.
    pub(crate) fn press(&mut self, text: &str) {
        self.call("Input.insertText", json!({ "text": text }));
    }

    /// Keeps what is to be seen, for people.
    pub(crate) fn keep_picture(&mut self, name: &str) {
        let picture = self.call("Page.captureScreenshot", json!({}));
        let mut file = File::create(format!("{}/{name}.png", env!("CARGO_TARGET_TMPDIR"))).unwrap();
        file.write_all(&from_base64(picture["data"].as_str().unwrap())).unwrap();
    }

    /// What went wrong in the pages: errors of scripts, and what a page's policy has refused.
    pub(crate) fn complaints(&mut self) -> Vec<String> {
        // Earlier events have arrived with this answer.
        self.ask("1");
        let wrong = self.told.iter().filter(|it| match it["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Log.entryAdded") => it["params"]["entry"]["level"] == "error",
            _ => false,
        });
        wrong.map(Value::to_string).collect()
    }
}

fn from_base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |byte: &u8| u32::try_from(DIGITS.iter().position(|it| it == byte)?).ok();
    let digits: Vec<u32> = text.as_bytes().iter().filter_map(digit).collect();
    let bytes = digits.chunks(4).flat_map(|four| {
        let missing = 4 - four.len();
        let number = four.iter().fold(0_u32, |sum, digit| sum * 64 + digit) << (6 * missing);
        number.to_be_bytes().into_iter().skip(1).take(3 - missing)
    });
    bytes.collect()
}
