//! What the documents tell people to type.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::harness::{Done, Site, finish};

pub(crate) fn document(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::read_to_string(root.join(name)).unwrap()
}

/// Runs a script as a user types it, in a directory and with a store of its own.
pub(crate) fn typed(script: &str) -> Done {
    let site = Site::embedded();
    let here = site.path("here");
    fs::create_dir(&here).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_leasehold")).parent().unwrap();
    let mut path = program.as_os_str().to_owned();
    path.push(":");
    path.push(env::var_os("PATH").unwrap());
    let mut command = Command::new("sh");
    command.args(["-e", "-c", script]).current_dir(here);
    command.env("LEASEHOLD_STORE", site.store()).env("PATH", path);
    finish(&mut command).expect(0)
}

/// The scripts of a document, each with the output that stands below it.
fn recipes(text: &str) -> Vec<(&str, &str)> {
    let mut blocks = text.split("```").skip(1).step_by(2).peekable();
    let mut recipes = Vec::new();
    while let Some(block) = blocks.next() {
        let Some(script) = block.strip_prefix("sh\n") else { continue };
        let output = blocks.next_if(|next| next.starts_with("text\n"));
        let output = output.unwrap_or_else(|| panic!("without its output: {script}"));
        recipes.push((script, &output["text\n".len()..]));
    }
    recipes
}

#[track_caller]
fn prints_what_it_says(name: &str) {
    let text = document(name);
    let recipes = recipes(&text);
    assert!(recipes.len() >= 4, "{name} has {} recipes", recipes.len());
    for (script, output) in recipes {
        assert_eq!(typed(script).stdout, output, "{name}:\n{script}");
    }
}

/// The script of a document that begins this way.
pub(crate) fn script<'a>(text: &'a str, begin: &str) -> &'a str {
    let block = text.split("```sh\n").find(|block| block.starts_with(begin));
    block.unwrap_or_else(|| panic!("no script begins with {begin}")).split_once("```").unwrap().0
}

#[test]
fn the_first_minute_of_the_readme_ends_under_a_lock() {
    let text = document("README.md");
    // What makes the package and installs it is tried by the tests of the package.
    let (install, run) = script(&text, "sudo apt install ").split_once('\n').unwrap();
    assert!(install.starts_with("sudo apt install ./target/dist/leasehold_*.deb "), "{install}");
    let done = typed(run);
    assert!(done.stdout.starts_with("fence "), "{done:?}");
    // The same for the program that is not installed.
    let build = script(&text, "cargo run --release ");
    let (_, line) = build.split_once(" -- ").unwrap();
    let done = typed(&format!("leasehold {line}"));
    assert!(done.stdout.starts_with("fence "), "{done:?}");
}

#[test]
fn a_script_that_holds_a_lock_goes_on_under_it() {
    let text = document("docs/command.md");
    let recipe = script(&text, "fence=$(leasehold hold backup");
    let after = "leasehold run backup -n -q -- true || echo $?\n\
                 leasehold release backup --fence \"$fence\" || exit\n\
                 leasehold run backup -n -q -- echo given back";
    let done = typed(&format!("{recipe}{after}"));
    assert_eq!(done.stdout, "under backup\n75\ngiven back\n");
}

#[test]
fn the_examples_of_every_kind_of_lock_work_as_they_are_typed() {
    let text = document("docs/command.md");
    let done = typed(script(&text, "leasehold run prices -s"));
    assert_eq!(done.stdout, "reads\nin\ntransfers\nreports\nleads\nbacks up\n");
    assert_eq!(done.stderr, "");
}

#[test]
fn the_outcome_of_a_job_is_in_its_file_as_the_page_says() {
    let text = document("docs/jobs.md");
    let (_, section) = text.split_once("\n## The outcome in a file\n").unwrap();
    let recipes = recipes(section);
    assert_eq!(recipes.len(), 1);
    for (script, output) in recipes {
        assert_eq!(typed(script).stdout, output, "{script}");
    }
}

#[test]
fn the_quick_start_prints_what_it_says() {
    prints_what_it_says("docs/quick-start.md");
}

#[test]
fn the_recipes_of_the_cookbook_print_what_they_say() {
    prints_what_it_says("docs/cookbook.md");
}
