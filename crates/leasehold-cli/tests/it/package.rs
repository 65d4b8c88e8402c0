//! The Debian package: installed, used, and removed without a trace.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::harness::{Done, Site, finish};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Makes the package of the program that is tested, without taking time to compress it.
fn package(site: &Site) -> PathBuf {
    let mut script = Command::new(format!("{ROOT}/packaging/debian.sh"));
    script.arg(env!("CARGO_BIN_EXE_leasehold")).arg(site.path("dist")).arg("none");
    PathBuf::from(finish(&mut script).expect(0).stdout.trim())
}

/// Debian's installer, for a system of its own in this directory.
fn dpkg(site: &Site, args: &[&str]) -> Done {
    let mut dpkg = Command::new("dpkg");
    // It needs nothing of this machine: packages, rights, or programs. Its tools make the group and
    // the directory in the other system, which has none.
    let forces =
        ["--force-not-root", "--force-bad-path", "--force-depends", "--force-script-chrootless"];
    dpkg.arg(format!("--root={}", site.path("root").display())).args(forces).args(args);
    finish(&mut dpkg)
}

/// The file of a content, which has to be what it is called.
fn blob(image: &Path, says: &Value) -> Vec<u8> {
    let digest = says["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
    let path = image.join("blobs/sha256").join(digest);
    let sum = finish(Command::new("sha256sum").arg(&path)).expect(0).stdout;
    assert!(sum.starts_with(digest), "{sum}");
    let bytes = fs::read(&path).unwrap();
    assert_eq!(says["size"], bytes.len());
    bytes
}

/// The program without what debuggers read, which is most of it and takes long to compress.
fn stripped(site: &Site) -> PathBuf {
    let (whole, small) = (env!("CARGO_BIN_EXE_leasehold"), site.path("small"));
    finish(Command::new("strip").arg("-o").arg(&small).arg(whole)).expect(0);
    small
}

#[test]
fn an_image_is_put_together_without_a_builder_of_images() {
    let site = Site::embedded();
    let program = stripped(&site);
    let make = || {
        let mut script = Command::new(format!("{ROOT}/packaging/image.sh"));
        script.arg(&program).arg(site.path("dist"));
        let made = finish(script.env("SOURCE_DATE_EPOCH", "1700000000")).expect(0).stdout;
        fs::read(made.trim()).map(|bytes| (made.trim().to_owned(), bytes)).unwrap()
    };
    let (archive, first) = make();
    assert_eq!(make().1, first, "the same program gives the same image");
    let image = site.path("image");
    fs::create_dir(&image).unwrap();
    let unpack = |from: &str, to: &Path| {
        finish(Command::new("tar").args(["-xf", from, "-C"]).arg(to)).expect(0);
    };
    unpack(&archive, &image);
    assert_eq!(
        fs::read(image.join("oci-layout")).unwrap(),
        b"{\"imageLayoutVersion\":\"1.0.0\"}\n"
    );
    let read = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
    let index = read(&fs::read(image.join("index.json")).unwrap());
    let manifest = read(&blob(&image, &index["manifests"][0]));
    let config = read(&blob(&image, &manifest["config"]));
    assert_eq!(config["config"]["User"], "65534:65534");
    let layer = &manifest["layers"][0];
    fs::write(site.path("layer.tar.gz"), blob(&image, layer)).unwrap();
    let root = site.path("root");
    fs::create_dir(&root).unwrap();
    unpack(site.path("layer.tar.gz").to_str().unwrap(), &root);
    let program =
        root.join(config["config"]["Entrypoint"][0].as_str().unwrap().trim_start_matches('/'));
    let mut run = Command::new(program);
    run.args(["run", "k", "--", "true"]).env_clear().env("PATH", "/usr/bin:/bin");
    finish(run.env("LEASEHOLD_STORE", site.store())).expect(0);
}

#[test]
fn the_package_is_installed_used_and_removed() {
    let site = Site::embedded();
    let package = package(&site);
    let root = install(&site, &package);

    let installed = |name: &str| root.join(name).exists();
    for name in [
        "usr/share/man/man1/leasehold.1.gz",
        "usr/share/man/man1/leasehold-run.1.gz",
        "usr/share/bash-completion/completions/leasehold",
        "usr/share/zsh/vendor-completions/_leasehold",
        "usr/share/fish/vendor_completions.d/leasehold.fish",
        "usr/share/doc/leasehold/copyright",
        "usr/share/doc/leasehold/changelog.gz",
        "usr/share/doc/leasehold/night.md.gz",
        "usr/share/doc/leasehold/operations/stuck.md.gz",
        "usr/lib/sysusers.d/leasehold.conf",
        "usr/lib/tmpfiles.d/leasehold.conf",
    ] {
        assert!(installed(name), "{name} is missing");
    }
    let page = Command::new("gzip")
        .arg("-dc")
        .arg(root.join("usr/share/man/man1/leasehold-run.1.gz"))
        .output();
    assert!(String::from_utf8(page.unwrap().stdout).unwrap().contains(".TH leasehold-run 1 "));

    let program = root.join("usr/bin/leasehold");
    let run = |words: &[&str]| {
        let mut command = Command::new(&program);
        command.args(words).env_clear().env("PATH", "/usr/bin:/bin");
        finish(command.env("LEASEHOLD_STORE", site.store()).current_dir(site.path("")))
    };
    let done =
        run(&["run", "reports/daily", "--", "sh", "-c", "echo \"$LEASEHOLD_KEY\""]).expect(0);
    assert_eq!(done.stdout, "reports/daily\n");

    // What the unit starts, as systemd would: it may use no shell.
    let unit = root.join("usr/share/doc/leasehold/examples/systemd/leasehold-report.service");
    let unit = fs::read_to_string(unit).unwrap();
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let words: Vec<&str> = start.split(' ').collect();
    assert_eq!(words[0], "/usr/bin/leasehold");
    run(&words[1..]).expect(0);
    // Once in a period, and what says so is a success for the unit.
    run(&words[1..]).expect(75);
    assert!(unit.contains("\nSuccessExitStatus=75\n"));

    let shared = root.join("var/lib/leasehold");
    let store = fs::metadata(&shared).unwrap();
    assert_eq!(store.mode() & 0o7777, 0o2770);
    dpkg(&site, &["--remove", "leasehold"]).expect(0);
    assert!(shared.exists(), "where locks are is not forgotten by the way");
    dpkg(&site, &["--purge", "leasehold"]).expect(0);
    assert!(!root.join("usr").exists() && !shared.exists(), "nothing is left");
}

/// Installs the package in a system of its own: where that is.
fn install(site: &Site, package: &Path) -> PathBuf {
    let root = site.path("root");
    for directory in ["info", "updates"] {
        fs::create_dir_all(root.join("var/lib/dpkg").join(directory)).unwrap();
    }
    fs::write(root.join("var/lib/dpkg/status"), "").unwrap();
    dpkg(site, &["--install", package.to_str().unwrap()]).expect(0);
    root
}

/// Runs a script of root's that sees the other system's group and store in the place of this
/// machine's.
fn in_the_other_system(root: &Path, script: &str) -> Done {
    let prepared = format!(
        "mount --bind \"$0/var/lib\" /var/lib && mount --bind \"$0/etc/group\" /etc/group || exit 99\n\
         export PATH=\"$0/usr/bin:$PATH\" HOME=/nonexistent\n\
         group=$(sed -n 's/^leasehold:[^:]*:\\([0-9]*\\):.*/\\1/p' /etc/group)\n\
         as() {{ user=$1 of=$2; shift 2; setpriv --reuid $user --regid $of --clear-groups -- \"$@\"; }}\n\
         {script}"
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-uc", &prepared]).arg(root).current_dir("/");
    finish(command.env_remove("LEASEHOLD_STORE"))
}

#[test]
fn the_package_brings_a_store_in_which_all_users_of_the_machine_meet() {
    let site = Site::embedded();
    fs::set_permissions(site.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    let root = install(&site, &package(&site));
    let can = in_the_other_system(&root, "true").status.success();
    if !can {
        println!("NOT TRIED: this user can't see another system in the place of this one");
        return;
    }
    let done = in_the_other_system(
        &root,
        r#"
        leasehold -v run k -- true
        as 61238 $group leasehold run k -- leasehold -q run n -- true || echo "member: $?"
        as 61238 $group leasehold run k -- sh -c 'echo "$LEASEHOLD_STORE"'
        leasehold hold k --ignore-stdin > /var/lib/held &
        until [ -s /var/lib/held ]; do sleep 0.05; done
        as 61239 $group leasehold run k -nq -- true; echo "another member: $?"
        as 61239 $group leasehold ls | grep -c '^k '
        kill $!; wait $!
        "#,
    );
    assert!(done.stderr.contains("this machine's default store"), "{done:?}");
    assert_eq!(done.stdout, "embedded:/var/lib/leasehold\nanother member: 75\n1\n", "{done:?}");
    let stranger = in_the_other_system(
        &root,
        "exec setpriv --reuid 61240 --regid 61240 \
                                               --clear-groups -- leasehold run k -- echo never",
    );
    stranger
        .complains(78, "at embedded:/var/lib/leasehold")
        .complains(78, "group leasehold, not for user 61240")
        .complains(78, "sudo usermod -aG leasehold USER");
    assert!(!Path::new("/tmp/leasehold-61240").exists(), "and is given no other");
}

#[test]
fn the_first_minute_ends_with_a_held_lock() {
    let site = Site::embedded();
    let mut script = Command::new(format!("{ROOT}/packaging/first-minute.sh"));
    let done = finish(script.arg(package(&site))).expect(0);
    let steps: Vec<_> = done.stdout.lines().filter_map(|it| it.split("  ").next()).collect();
    assert_eq!(steps, ["fetched", "installed", "held", "in all"], "{done:?}");
}
