//! Every recipe of the book, of the help and of the examples, on bad days: twice at once, over what
//! an earlier one has left, with the lock busy, and with the lock taken away.
//!
//! A recipe is run as it stands. Its command under a lock is started by a program that notes who
//! else is in the section, and so does `echo` in a script that takes a lock for itself. So a recipe
//! that lets two in at once is found whatever it prints itself. A recipe that is new needs a line
//! in [`RECIPES`].

use std::env;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread;

use rustix::process::{Pid, Signal};

use crate::harness::{Site, lock, until};
use crate::readme::document;

/// What a recipe does with its locks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Work {
    /// As the command of `run`, by so many at once.
    Command(usize),
    /// As the script itself, between the line that takes the lock and its end.
    Script,
    /// None that a lock protects: it is made to fail, or looks, or sets up.
    None,
}

use Work::{Command as Run, None as Nothing, Script as Within};

/// A recipe by a line that only it has, its locks, and its work.
const RECIPES: &[(&str, &[&str], Work)] = &[
    // README.md
    ("leasehold run reports/daily -- sh -c", &["reports/daily"], Run(1)),
    // docs/quick-start.md
    ("leasehold run backup -- echo \"backing up\"", &["backup"], Run(1)),
    ("leasehold hold busy --while-pid", &["busy"], Within),
    ("leasehold run backup --owner web-7", &["backup"], Run(1)),
    ("for host in 1 2 3; do", &["reports/daily"], Run(1)),
    // docs/command.md
    ("leasehold run backup -- /usr/local/bin/backup ", &["backup"], Nothing),
    ("leasehold hold backup --while-pid $$ --background) || exit\necho", &["backup"], Within),
    ("leasehold run prices -s -- echo reads ", &["prices", "account/7"], Run(9)),
    // docs/operations/postgres.md
    ("leasehold run reports/daily --store postgres://", &["reports/daily"], Nothing),
    // docs/jobs.md
    ("leasehold run backup --status outcome", &["backup"], Run(1)),
    // docs/interop.md
    ("leasehold run orders --store redis://HOST --interop redisson", &["orders"], Nothing),
    ("leasehold run orders --interop redis-py --expire-leftovers", &["orders"], Nothing),
    ("leasehold run orders --interop redsync -- leasehold", &["orders"], Nothing),
    // docs/cookbook.md
    ("report() { leasehold run reports/daily", &["reports/daily"], Run(1)),
    ("leasehold run import -n", &["import"], Run(1)),
    ("leasehold hold deploy --while-pid", &["deploy"], Within),
    ("leasehold acquire migration", &["migration"], Within),
    ("for buyer in 1 2 3 4 5", &["tills"], Run(3)),
    ("leasehold run prices -s -- leasehold", &["prices"], Run(9)),
    ("leasehold run account/7 account/3 -- echo \"transferred", &["account/7"], Run(1)),
    ("first=$(leasehold run ids", &["ids"], Run(1)),
    ("reply() { leasehold run thread/7", &["thread/7"], Run(1)),
    ("leasehold elect scheduler --owner", &["scheduler"], Nothing),
    // The help
    ("leasehold hold backup --while-pid $$ --background) || exit\n...", &["backup"], Within),
    ("LEASEHOLD_LEASE=$(leasehold acquire backup", &["backup"], Within),
    // examples/shell
    ("fence=$(leasehold hold \"$name\"", &["deploy"], Within),
];

/// Notes in `overlaps` when more than `$LIMIT` are in the section at once, or one that wants it
/// alone. The work is a command, or only what is printed.
const MARK: &str = r#"#!/bin/sh
here=$MARKS/in.$$
mkdir "$here"
: > "$MARKS/entered"
count=0
for other in "$MARKS"/in.*; do
    if grep -qs '^State:.[^ZX]' "/proc/${other##*in.}/status"; then count=$((count + 1)); fi
done
if [ "$count" -gt "$LIMIT" ] || [ -e "$MARKS/alone" ]; then echo "$*" >> "$MARKS/overlaps"; fi
if [ -e "$MARKS/stay" ]; then exec sleep 1000; fi
while [ -e "$MARKS/wait" ]; do sleep 0.02; done
sleep 0.05
case $0 in
    */within) "$@" ;;
    *) printf '%s\n' "$*" ;;
esac
code=$?
rmdir "$here"
exit $code
"#;

/// Has the command of `run` and `elect` started by the mark.
const MARKING: &str = r#"#!/bin/sh
case $1 in run | elect) command=-- ;; *) command= ;; esac
for word; do
    shift
    set -- "$@" "$word"
    if [ "$word" = "$command" ]; then command=; set -- "$@" within; fi
done
exec "$PROGRAM" "$@"
"#;

/// How a recipe is tried, under which name, and with which ttl.
type Way = (&'static str, &'static str, fn(&Trial, &str));

const WAYS: [Way; 4] = [
    ("twice at once", "30s", |trial, _| twice_at_once(trial, "twice at once")),
    ("over its leftovers", "30s", |trial, _| over_its_leftovers(trial)),
    ("with the lock busy", "30s", |trial, key| {
        with_the_lock_busy(trial, key);
        trial.judge("with the lock busy");
    }),
    // A third of it is how long a holder does not know.
    ("with the lock taken away", "1s", with_the_lock_taken_away),
];
const WORKERS: usize = 6;

/// Every script that people are told to type, from its page.
fn every_recipe() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let folders = ["docs", "docs/operations"].map(|folder| fs::read_dir(root().join(folder)));
    let pages = folders.into_iter().flat_map(Result::unwrap).map(|entry| entry.unwrap().path());
    let pages = pages.filter(|page| page.extension().is_some_and(|it| it == "md"));
    for page in pages.chain([root().join("README.md")]) {
        let name = page.file_name().unwrap().to_str().unwrap().to_owned();
        let text = fs::read_to_string(&page).unwrap();
        let blocks = text.split("```").skip(1).step_by(2);
        let scripts = blocks.filter_map(|block| block.strip_prefix("sh\n"));
        let scripts = scripts.filter(|script| takes_a_lock(script));
        found.extend(scripts.map(|script| (name.clone(), script.to_owned())));
    }
    let help = document("crates/leasehold-cli/tests/it/help.txt");
    for paragraph in help.split("\n\n") {
        let lines: Vec<_> = paragraph.lines().map(str::trim_start).collect();
        // Usage and prose have them too; a script assigns what it is given.
        if paragraph.starts_with("  ") && paragraph.contains("=$(leasehold ") {
            found.push(("help".to_owned(), lines.join("\n") + "\n"));
        }
    }
    for entry in fs::read_dir(root().join("examples/shell")).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        found.push(("examples".to_owned(), text));
    }
    found
}

fn takes_a_lock(script: &str) -> bool {
    ["run ", "hold ", "acquire ", "elect "]
        .iter()
        .any(|how| script.contains(&format!("leasehold {how}")))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A recipe where it is tried.
struct Trial {
    site: Site,
    script: String,
    limit: usize,
    work: Work,
}

impl Trial {
    fn new(script: &str, work: Work, ttl: &str) -> Self {
        let site = Site::embedded();
        for name in ["here", "bin", "marks"] {
            fs::create_dir(site.path(name)).unwrap();
        }
        // Written by another process: while a fork of this one has a file open for writing, it
        // can't be executed.
        let write = "cd bin && printf %s \"$0\" >mark && printf %s \"$1\" >leasehold && cp mark within && \
                     chmod 755 mark within leasehold";
        let mut shell = Command::new("sh");
        let written = shell.args(["-c", write, MARK, MARKING]).current_dir(site.path("")).status();
        assert!(written.unwrap().success());
        fs::write(site.path("config.toml"), format!("ttl = \"{ttl}\"\n")).unwrap();
        let limit = match work {
            Run(limit) => limit,
            Within => 1,
            Nothing => usize::MAX,
        };
        // What it builds and installs, and what stands for work that is left out.
        let lines =
            script.lines().filter(|line| !line.starts_with("cargo ") && !line.starts_with("sudo "));
        let lines = lines.map(|line| if line == "..." { "echo at work" } else { line });
        let mut text = String::new();
        for line in lines {
            text.push_str(line);
            text.push('\n');
            if line.starts_with("leasehold release ") {
                text.push_str("echo() { printf '%s\\n' \"$*\"; }\n");
            }
        }
        let prelude = if work == Within { "echo() { mark \"$@\"; }\n" } else { "" };
        Self { script: format!("{prelude}{text}"), site, limit, work }
    }

    fn command(&self, script: &str) -> Command {
        let bin = self.site.path("bin");
        let path = env::var("PATH").unwrap();
        let mut command = Command::new("sh");
        // Not with -e, which a script of its reader need not have.
        command.args(["-c", script]).current_dir(self.site.path("here")).process_group(0);
        command
            .env("LEASEHOLD_STORE", self.site.store())
            .env("LEASEHOLD_CONFIG", self.site.path("config.toml"))
            .env("MARKS", self.site.path("marks"))
            .env("LIMIT", self.limit.min(1000).to_string())
            .env("PROGRAM", env!("CARGO_BIN_EXE_leasehold"))
            .env("PATH", format!("{}:{path}", bin.display()));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn start(&self) -> Started {
        Started(self.command(&self.script).spawn().unwrap())
    }

    /// The processes that have come into the section and not left it by themselves.
    fn in_section(&self) -> Vec<String> {
        let marks = fs::read_dir(self.site.path("marks")).unwrap();
        let names = marks.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter_map(|name| name.strip_prefix("in.").map(str::to_owned)).collect()
    }

    fn is_in_section(&self) -> bool {
        !self.in_section().is_empty()
    }

    fn overlaps(&self) -> String {
        fs::read_to_string(self.site.path("marks/overlaps")).unwrap_or_default()
    }

    /// No two were in the section.
    #[track_caller]
    fn judge(&self, way: &str) {
        let overlaps = self.overlaps();
        assert_eq!(overlaps, "", "{way}: two at once in\n{}", self.script);
    }

    fn force_release(&self, key: &str) {
        for holder in lock(&self.site, key)["holders"].as_array().into_iter().flatten() {
            let fence = holder["fence"].as_str().unwrap();
            self.site.run(["force-release", key, "--fence", fence]);
        }
    }
}

/// A recipe under way, which ends with the test.
struct Started(Child);

impl Started {
    fn end(&mut self) -> bool {
        until("the recipe ends", || self.0.try_wait().unwrap().is_some());
        self.0.wait().unwrap().success()
    }

    fn kill(&mut self) {
        rustix::process::kill_process_group(Pid::from_child(&self.0), Signal::KILL).ok();
        self.0.wait().unwrap();
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.kill();
    }
}

fn twice_at_once(trial: &Trial, way: &str) {
    let (mut one, mut other) = (trial.start(), trial.start());
    one.end();
    other.end();
    trial.judge(way);
    let is_marked = trial.site.path("marks/entered").exists();
    assert!(is_marked || trial.work == Nothing, "{way}: nobody was in\n{}", trial.script);
}

fn over_its_leftovers(trial: &Trial) {
    trial.start().end();
    if trial.work != Nothing {
        fs::write(trial.site.path("marks/stay"), "").unwrap();
        let mut killed = trial.start();
        // One whose period is closed has no work.
        until("it is at work or has ended", || {
            trial.is_in_section() || killed.0.try_wait().unwrap().is_some()
        });
        killed.kill();
        fs::remove_file(trial.site.path("marks/stay")).unwrap();
    }
    twice_at_once(trial, "over its leftovers");
}

fn with_the_lock_busy(trial: &Trial, key: &str) -> String {
    let marks = trial.site.path("marks");
    let alone = marks.join("alone");
    let options = match key {
        "tills" => "--limit 3 --permits 3",
        _ => "",
    };
    let seen = trial.site.path("marks/seen");
    // In the section, alone, until the recipe waits or has ended.
    let section =
        "mkdir $MARKS/alone; while [ ! -e $MARKS/seen ]; do sleep 0.02; done; rmdir $MARKS/alone";
    let hold = format!("leasehold run {key} {options} -c '{section}'");
    let mut holder = Started(trial.command(&hold).spawn().unwrap());
    until("the lock is busy", || alone.exists());
    let mut recipe = trial.start();
    until("the recipe waits or has ended", || {
        let waiting = lock(&trial.site, key)["waiters"].as_array().map_or(0, Vec::len);
        waiting > 0 || recipe.0.try_wait().unwrap().is_some()
    });
    fs::write(seen, "").unwrap();
    recipe.end();
    holder.end();
    trial.overlaps()
}

/// Its work is ended, so it does not go on beside the next holder's for ever, and what comes after
/// is not done.
fn with_the_lock_taken_away(trial: &Trial, key: &str) {
    if trial.work == Nothing {
        return;
    }
    // What `acquire` took has no process that could end its work; it learns of the loss at its
    // release.
    let by_hand = trial.script.contains("leasehold acquire");
    let obstacle = trial.site.path(if by_hand { "marks/wait" } else { "marks/stay" });
    fs::write(&obstacle, "").unwrap();
    let mut struck = trial.start();
    until("it is at work", || trial.is_in_section() || struck.0.try_wait().unwrap().is_some());
    let marks = format!("MARKS={}\0", trial.site.path("marks").display());
    let is_at_work = || {
        trial.in_section().iter().any(|pid| {
            let read = |name: &str| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
            read("cmdline") == b"sleep\x001000\0"
                && String::from_utf8_lossy(&read("environ")).contains(&marks)
        })
    };
    // Each of several holders that follow each other loses it, a while after its force-release.
    let mut looks = 0..;
    until("its work is ended, or its lock is free", || {
        if looks.next().is_some_and(|look| look % 20 == 0) {
            trial.force_release(key);
        }
        by_hand || !is_at_work()
    });
    fs::remove_file(obstacle).unwrap();
    let went_well = struck.end();
    assert!(!(went_well && trial.work == Within), "goes on without its lock:\n{}", trial.script);
}

#[test]
fn every_recipe_excludes_on_bad_days_too() {
    let recipes = every_recipe();
    let entry_of = |script: &str| {
        let mut fitting = RECIPES.iter().filter(|(line, ..)| script.contains(line));
        let entry = fitting.next();
        assert!(entry.is_some(), "a recipe without its four ways; add it to RECIPES:\n{script}");
        assert!(fitting.next().is_none(), "two entries are about one recipe:\n{script}");
        *entry.unwrap()
    };
    for (line, ..) in RECIPES {
        let has = recipes.iter().any(|(_, script)| script.contains(line));
        assert!(has, "no page has this recipe any more: {line}");
    }
    let mut trials = Vec::new();
    for (page, script) in &recipes {
        let (_, keys, work) = entry_of(script);
        // What needs programs of its reader's, or another library's server, is not started.
        if !["/usr/local/bin/", "--interop"].iter().any(|what| script.contains(what)) {
            trials.extend(WAYS.map(|way| (page, script, keys[0], work, way)));
        }
    }
    let trials = Mutex::new(trials);
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some((page, script, key, work, (name, ttl, way))) =
                    { trials.lock().unwrap().pop() }
                {
                    println!("{page}, {name}: {}", script.lines().next().unwrap());
                    way(&Trial::new(script, work, ttl), key);
                }
            });
        }
    });
}

#[test]
fn a_recipe_that_goes_on_without_its_lock_is_found() {
    let script = "leasehold hold k -n --while-pid $$ > held & wait $!\necho at work\n";
    let trial = Trial::new(script, Within, "30s");
    assert_eq!(with_the_lock_busy(&trial, "k"), "at work\n");
}
