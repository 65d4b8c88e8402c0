//! The examples for other programs: what they would start is started.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use yaml_rust2::{Yaml, YamlLoader};

use crate::harness::{Site, finish, lock, until};
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
fn what_the_play_of_ansible_starts_takes_the_lock_and_gives_it_back() {
    let play = yaml("ansible/deploy.yml");
    let site = Site::embedded();
    let file = site.path("lease").display().to_string();
    let run = |task: &Yaml| {
        let words = words(&task["ansible.builtin.command"]["argv"]);
        assert_eq!(words[0], "leasehold");
        let words = words[1..].iter().map(|word| word.replace("{{ lease_file }}", &file));
        site.run(words.collect::<Vec<_>>()).expect(0)
    };
    let block = &play[0]["tasks"][0];
    run(&block["block"][0]);
    site.line("run deploy/web -n -- true").expect(75);
    run(&block["always"][0]);
    site.line("run deploy/web -n -- true").expect(0);
}

/// The script, under the program that is tested.
fn script(site: &Site, text: &str) -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_leasehold")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("bash");
    command.args(["-c", text, "coprocess.bash", "k"]).env_clear().env("PATH", path);
    command.env("LEASEHOLD_STORE", site.store()).current_dir(site.path(""));
    command
}

#[test]
fn a_script_holds_a_lock_as_it_would_a_file_of_flock() {
    let site = Site::embedded();
    let text = fs::read_to_string(format!("{EXAMPLES}/shell/coprocess.bash")).unwrap();
    let done = finish(&mut script(&site, &text)).expect(0);
    assert!(done.stdout.starts_with("under k with fence "), "{done:?}");
    assert!(done.stdout.ends_with("\nafter\n"), "{done:?}");
    assert_eq!(done.stderr, "");
    let mut holder = site.start(["hold", "k", "--ignore-stdin"]);
    holder.line();
    let impatient = text.replace("-w 30s", "-w 0.2s");
    assert_ne!(impatient, text);
    let done = finish(&mut script(&site, &impatient)).expect(75);
    assert_eq!(done.stdout, "");
    drop(holder);
    // Killed where it needs the lock, it holds it no longer.
    let stuck = text.replace("# What needs the lock stands here.", "while :; do sleep 0.05; done");
    assert_ne!(stuck, text);
    let mut killed = script(&site, &stuck).stdout(Stdio::null()).spawn().unwrap();
    until("the script has the lock", || {
        lock(&site, "k")["holders"].as_array().is_some_and(|holders| !holders.is_empty())
    });
    send(killed.id(), libc::SIGKILL);
    killed.wait().unwrap();
    site.line("run k -w 60 -- true").expect(0);
}
