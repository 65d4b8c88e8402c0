//! What the README tells people to type.

use std::env;
use std::path::Path;

use crate::harness::{Site, finish};

#[test]
fn the_examples_of_every_kind_of_lock_work_as_they_are_typed() {
    let site = Site::embedded();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(root.join("README.md")).unwrap();
    let block = text.split("```sh\n").find(|block| block.starts_with("leasehold run prices -s"));
    let (script, _) = block.unwrap().split_once("```").unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_leasehold")).parent().unwrap();
    let mut path = program.as_os_str().to_owned();
    path.push(":");
    path.push(env::var_os("PATH").unwrap());
    let mut command = std::process::Command::new("sh");
    command.args(["-e", "-c", script]).env("LEASEHOLD_STORE", site.store()).env("PATH", path);
    let done = finish(&mut command).expect(0);
    assert_eq!(done.stdout, "reads\nin\ntransfers\nreports\nleads\nbacks up\n");
    assert_eq!(done.stderr, "");
}
