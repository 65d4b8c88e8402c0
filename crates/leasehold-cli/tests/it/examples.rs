//! The examples for other programs: what they would start is started.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use yaml_rust2::{Yaml, YamlLoader};

use crate::harness::{Done, Site, finish, lock, until};
use crate::readme::document;
use crate::watchdog::send;

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");

fn yaml(name: &str) -> Yaml {
    let text = fs::read_to_string(format!("{EXAMPLES}/{name}")).unwrap();
    YamlLoader::load_from_str(&text).unwrap().remove(0)
}

fn words(list: &Yaml) -> Vec<&str> {
    list.as_vec().unwrap().iter().map(|word| word.as_str().unwrap()).collect()
}

#[test]
fn what_the_cron_job_of_kubernetes_starts_runs_once_in_its_period() {
    let job = yaml("kubernetes/cronjob.yaml");
    let pod = &job["spec"]["jobTemplate"]["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(container["env"][0]["name"].as_str(), Some("LEASEHOLD_STORE"));
    let mut command = words(&container["command"]);
    assert_eq!((command.remove(0), command.pop()), ("/usr/bin/leasehold", Some("/usr/bin/report")));
    command.extend(["sh", "-c", "echo >> ran"]);
    let site = Site::embedded();
    site.run(&command).expect(0);
    site.run(&command).expect(0);
    assert_eq!(site.read("ran").lines().count(), 1);
    // Both in seconds.
    let grace = pod["terminationGracePeriodSeconds"].as_i64().unwrap();
    assert!(command.contains(&"--grace=10s") && grace > 10, "the command ends before its pod");
}

#[test]
fn the_cron_job_of_kubernetes_runs_again_what_failed() {
    let job = yaml("kubernetes/cronjob.yaml");
    let spec = &job["spec"]["jobTemplate"]["spec"];
    let mut command = words(&spec["template"]["spec"]["containers"][0]["command"]);
    assert_eq!((command.remove(0), command.pop()), ("/usr/bin/leasehold", Some("/usr/bin/report")));
    // Fails where the first pod runs it, and not after.
    command.extend(["sh", "-c", "echo >> ran; [ \"$(wc -l < ran)\" -gt 1 ]"]);
    let site = Site::embedded();
    site.run(&command).expect(1);
    assert!(spec["backoffLimit"].as_i64() >= Some(1), "Kubernetes starts another pod");
    site.run(&command).expect(0);
    assert_eq!(site.read("ran").lines().count(), 2, "the second pod ran the report");
    // Then it is done, for the pods of other clusters too.
    site.run(&command).expect(0);
    assert_eq!(site.read("ran").lines().count(), 2);
}

#[test]
fn the_cookbook_shows_the_examples_as_they_are() {
    let text = document("docs/cookbook.md");
    let mut shown = Vec::new();
    for block in text.split("```").skip(1).step_by(2) {
        let named = ["ini\n# examples/", "yaml\n# examples/"];
        let Some(block) = named.iter().find_map(|begin| block.strip_prefix(begin)) else {
            continue;
        };
        let (name, excerpt) = block.split_once('\n').unwrap();
        let file = fs::read_to_string(format!("{EXAMPLES}/{name}")).unwrap();
        assert!(file.contains(excerpt), "{name} does not have:\n{excerpt}");
        shown.push(name);
    }
    shown.sort_unstable();
    let expected = [
        "ansible/deploy.yml",
        "kubernetes/cronjob.yaml",
        "systemd/leasehold-report.service",
        "systemd/leasehold-report.timer",
    ];
    assert_eq!(shown, expected);
}

/// Where systemd is; a machine without has no opinion.
#[test]
fn systemd_understands_the_unit_and_its_timer() {
    let site = Site::embedded();
    let copies = ["leasehold-report.service", "leasehold-report.timer"].map(|name| {
        let unit = fs::read_to_string(format!("{EXAMPLES}/systemd/{name}")).unwrap();
        let to = site.path(name);
        // Where the program is must be a program.
        fs::write(&to, unit.replace("/usr/bin/leasehold", env!("CARGO_BIN_EXE_leasehold")))
            .unwrap();
        to
    });
    let mut verify = Command::new("systemd-analyze");
    match verify.arg("verify").args(&copies).output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            // Of other units it says what it likes.
            assert!(!said.contains("leasehold-report"), "{said}");
        }
        Err(error) => println!("not verified, without systemd-analyze: {error}"),
    }
}

/// A deployment: the plays of the example, with what Ansible would put into their words.
struct Deployment<'a> {
    site: &'a Site,
    plays: Yaml,
    path: String,
    /// How what was registered ended.
    codes: HashMap<String, i32>,
}

impl<'a> Deployment<'a> {
    fn new(site: &'a Site) -> Self {
        let plays = yaml("ansible/deploy.yml");
        let hosts: Vec<_> =
            plays.as_vec().unwrap().iter().map(|play| play["hosts"].as_str().unwrap()).collect();
        // One host of each is never lost, and after a play that lost all its hosts Ansible ends.
        assert_eq!(hosts, ["localhost", "web,localhost", "localhost"]);
        let made = &plays[0]["tasks"][0]["ansible.builtin.tempfile"];
        assert_eq!(made["state"].as_str(), Some("directory"));
        let path = tempfile::tempdir_in(site.path("")).unwrap().keep();
        let path = path.to_str().unwrap().to_owned();
        Self { site, plays, path, codes: HashMap::new() }
    }

    /// What the first play would start to take the lock.
    fn acquire(&self) -> Vec<String> {
        self.command(&self.plays[0]["tasks"][1]["block"][0])
    }

    fn command(&self, task: &Yaml) -> Vec<String> {
        let words = words(&task["ansible.builtin.command"]["argv"]);
        let filled = words.iter().map(|word| word.replace("{{ lease.path }}", &self.path));
        filled.skip_while(|word| word == "leasehold").collect()
    }

    /// Takes in how the lock was taken, and does what the first play does then.
    fn acquired(&mut self, done: &Done) {
        let taking = self.plays[0]["tasks"][1].clone();
        self.register(&taking["block"][0], done);
        let always = &taking["always"][0];
        assert_eq!(always["when"].as_str(), Some("acquired is failed"));
        if self.codes["acquired"] != 0 {
            self.remove(always);
        }
    }

    fn register(&mut self, task: &Yaml, done: &Done) {
        self.codes
            .insert(task["register"].as_str().unwrap().to_owned(), done.status.code().unwrap());
    }

    fn remove(&self, task: &Yaml) {
        let path = task["ansible.builtin.file"]["path"].as_str();
        assert_eq!(path, Some("{{ lease.path }}"));
        fs::remove_dir_all(&self.path).unwrap();
    }

    /// What the last play does, which is run however the second ended: whether it is a failure.
    fn finish(&mut self) -> bool {
        let tasks = self.plays[2]["tasks"].clone();
        let done = self.site.run(self.command(&tasks[0]));
        self.register(&tasks[0], &done);
        assert_eq!(tasks[0]["failed_when"].as_str(), Some("released.rc not in [0, 76]"));
        if ![0, 76].contains(&self.codes["released"]) {
            return true;
        }
        self.remove(&tasks[1]);
        assert!(tasks[2]["ansible.builtin.fail"]["msg"].as_str().unwrap().contains("was lost"));
        assert_eq!(tasks[2]["when"].as_str(), Some("released.rc == 76"));
        self.codes["released"] == 76
    }
}

#[test]
fn two_deployments_from_one_controller_go_one_after_the_other() {
    let site = Site::embedded();
    let held = || site.line("run deploy/web -n -q -- true").status.code() == Some(75);
    let mut first = Deployment::new(&site);
    let done = site.run(first.acquire()).expect(0);
    first.acquired(&done);

    // One that has no patience ends there.
    let mut second = Deployment::new(&site);
    let mut command = second.acquire();
    assert!(command.contains(&"--wait=10m".to_owned()));
    command.push("--wait=0.2s".to_owned());
    command.retain(|word| word != "--wait=10m");
    second.acquired(&site.run(&command).expect(75));
    assert!(held(), "the first deployment has the lock");

    // Another one waits until the first has given it back, and then has it.
    let mut third = Deployment::new(&site);
    let acquiring = site.start(third.acquire());
    until("the third deployment waits", || {
        lock(&site, "deploy/web")["waiters"].as_array().is_some_and(|all| all.len() == 1)
    });
    assert!(!first.finish());
    third.acquired(&acquiring.finish().expect(0));
    assert!(held(), "the third deployment has the lock");
    assert!(!third.finish());
    assert!(!held(), "all have given it back");
    let left = fs::read_dir(site.path("")).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(left.collect::<Vec<_>>(), ["locks"], "no lease file is left");
}

#[test]
fn a_deployment_whose_lock_was_force_released_fails() {
    let site = Site::embedded();
    let mut deployment = Deployment::new(&site);
    let done = site.run(deployment.acquire()).expect(0);
    deployment.acquired(&done);
    let owner = lock(&site, "deploy/web")["holders"][0]["owner"].as_str().unwrap().to_owned();
    site.run(["release", "--all", "--yes", "--owner", &owner]).expect(0);
    assert!(deployment.finish());
}

/// The script, under the program that is tested.
fn script(site: &Site, text: &str) -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_leasehold")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("sh");
    command.args(["-c", text, "section.sh", "k"]).env_clear().env("PATH", path);
    command.env("LEASEHOLD_STORE", site.store()).current_dir(site.path(""));
    command
}

#[test]
fn a_script_holds_a_lock_as_it_would_a_file_of_flock() {
    let site = Site::embedded();
    let text = fs::read_to_string(format!("{EXAMPLES}/shell/section.sh")).unwrap();
    let done = finish(&mut script(&site, &text)).expect(0);
    assert!(done.stdout.starts_with("under k with fence "), "{done:?}");
    assert!(done.stdout.ends_with("\nafter\n"), "{done:?}");
    assert_eq!(done.stderr, "");
    let mut holder = site.start(["hold", "k", "--ignore-stdin"]);
    holder.line();
    let impatient = text.replace("-w 30s", "-w 1s");
    assert_ne!(impatient, text);
    let done = finish(&mut script(&site, &impatient)).expect(75);
    assert_eq!(done.stdout, "");
    drop(holder);
    // Killed where it needs the lock, it holds it no longer.
    let line = text.lines().find(|line| line.starts_with("# The critical section")).unwrap();
    let stuck = text.replace(line, "while :; do sleep 0.05; done");
    assert_ne!(stuck, text);
    let mut killed = script(&site, &stuck).stdout(Stdio::null()).spawn().unwrap();
    until("the script has the lock", || {
        lock(&site, "k")["holders"].as_array().is_some_and(|holders| !holders.is_empty())
    });
    send(killed.id(), libc::SIGKILL);
    killed.wait().unwrap();
    site.line("run k -w 60 -- true").expect(0);
}
