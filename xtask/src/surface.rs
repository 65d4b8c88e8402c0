//! `cargo xtask surface`: compares the public surface with the listing in `docs/api`.
//!
//! So a change of the surface shows in the difference. Each method that waits also has to say its
//! cost.
//!
//! The listing is made from rustdoc's output for machines. That format is unstable, but the few
//! parts that are read here have long been the same.

mod documented;
mod signature;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

use documented::Function;
use serde_json::Value;

/// The crates whose API users call, and the folder of the listing.
const CRATES: [&str; 2] = ["leasehold", "leasehold-core"];
const FOLDER: &str = "docs/api";

/// What to do about a listing that differs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Task {
    Compare,
    Write,
}

pub(crate) fn run(root: &Path, task: Task) -> Result<(), String> {
    let (mut changed, mut silent) = (Vec::new(), Vec::new());
    for name in CRATES {
        let documented = documented(root, name)?;
        let Listing { lines, functions, .. } = listing(&documented);
        silent.extend(documented::findings(&functions));
        let path = root.join(FOLDER).join(format!("{name}.txt"));
        let new = lines.iter().map(|line| format!("{line}\n")).collect::<String>();
        let old = fs::read_to_string(&path).unwrap_or_default();
        if new == old {
            continue;
        }
        if task == Task::Write {
            fs::create_dir_all(root.join(FOLDER)).map_err(|error| error.to_string())?;
            fs::write(&path, new).map_err(|error| format!("{}: {error}", path.display()))?;
            println!("{} written", path.display());
            continue;
        }
        let (old, new): (BTreeSet<_>, BTreeSet<_>) = (old.lines().collect(), new.lines().collect());
        changed.extend(old.difference(&new).map(|gone| format!("  - {gone}")));
        changed.extend(new.difference(&old).map(|came| format!("  + {came}")));
    }
    if !silent.is_empty() {
        return Err(format!(
            "what waits has to say its cost, its errors by kind, and what a dropped future loses:\n  {}",
            silent.join("\n  ")
        ));
    }
    if changed.is_empty() {
        return Ok(());
    }
    Err(format!(
        "the public surface is not what {FOLDER} says; if that is meant, run `cargo xtask surface \
         --write` and commit the listing with the change:\n{}",
        changed.join("\n")
    ))
}

/// Rustdoc's description of a crate.
fn documented(root: &Path, name: &str) -> Result<Value, String> {
    let library = name.replace('-', "_");
    let target = root.join("target").join("surface");
    // rustdoc's output for machines is unstable. Only the documentation of this crate is built with
    // that permission, in its own folder.
    let status = Command::new(env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()))
        .current_dir(root)
        .env("RUSTC_BOOTSTRAP", &library)
        .args(["rustdoc", "--quiet", "--all-features", "--package", name, "--target-dir"])
        .arg(&target)
        .args(["--", "-Z", "unstable-options", "--output-format", "json"])
        .status()
        .map_err(|error| format!("cargo rustdoc: {error}"))?;
    if !status.success() {
        return Err(format!("cargo rustdoc of {name} failed"));
    }
    let path = target.join("doc").join(format!("{library}.json"));
    let text = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    serde_json::from_slice(&text).map_err(|error| format!("{}: {error}", path.display()))
}

/// One line for each public item, in order, and all functions.
fn listing(documented: &Value) -> Listing<'_> {
    let mut listing =
        Listing { index: &documented["index"], lines: BTreeSet::new(), functions: Vec::new() };
    let root = listing.item(&documented["root"]);
    let name = root["name"].as_str().unwrap_or_default().to_owned();
    listing.module(root, &name);
    listing
}

struct Listing<'a> {
    index: &'a Value,
    lines: BTreeSet<String>,
    functions: Vec<Function<'a>>,
}

impl<'a> Listing<'a> {
    fn item(&self, id: &Value) -> &'a Value {
        let id = id
            .as_u64()
            .map_or_else(|| id.as_str().unwrap_or_default().to_owned(), |id| id.to_string());
        &self.index[id]
    }

    fn items(&self, ids: &'a Value) -> impl Iterator<Item = &'a Value> + use<'a> {
        let items: Vec<_> = ids.as_array().into_iter().flatten().map(|id| self.item(id)).collect();
        items.into_iter().filter(|item| !item.is_null())
    }

    fn add(&mut self, line: impl Into<String>) {
        self.lines.insert(line.into());
    }

    fn module(&mut self, module: &'a Value, path: &str) {
        for item in self.items(&module["inner"]["module"]["items"]) {
            self.public(item, path);
        }
    }

    /// An item of a module, under the name that it has there.
    fn public(&mut self, item: &'a Value, within: &str) {
        let inner = &item["inner"];
        if let Some(used) = inner.get("use") {
            let name = used["name"].as_str().unwrap_or_default();
            let target = self.item(&used["id"]);
            if target.is_null() || used["is_glob"] == true {
                // An item of another crate, which has its own listing.
                let source = used["source"].as_str().unwrap_or_default();
                self.add(format!("use {within}::{name} = {source}"));
            } else {
                self.named(target, &format!("{within}::{name}"));
            }
            return;
        }
        let name = item["name"].as_str().unwrap_or_default();
        self.named(item, &format!("{within}::{name}"));
    }

    fn named(&mut self, item: &'a Value, path: &str) {
        let inner = &item["inner"];
        let Some(kind) = inner.as_object().and_then(|inner| inner.keys().next()) else { return };
        let what = &inner[kind.as_str()];
        let exhaustive = if is_non_exhaustive(item) { "non-exhaustive " } else { "" };
        match kind.as_str() {
            "module" => {
                self.add(format!("mod {path}"));
                self.module(item, path);
            }
            "struct" => {
                let generics = signature::generics(&what["generics"]);
                self.add(format!("{exhaustive}struct {path}{generics}"));
                self.fields(&what["kind"]["plain"]["fields"], path);
                self.impls(&what["impls"], path);
            }
            "enum" => {
                let generics = signature::generics(&what["generics"]);
                self.add(format!("{exhaustive}enum {path}{generics}"));
                for variant in self.items(&what["variants"]) {
                    let name = format!("{path}::{}", variant["name"].as_str().unwrap_or_default());
                    let kind = &variant["inner"]["variant"]["kind"];
                    let tuple = self
                        .items(&kind["tuple"])
                        .map(|field| signature::ty(&field["inner"]["struct_field"]));
                    let tuple = tuple.collect::<Vec<_>>().join(", ");
                    let tuple = if tuple.is_empty() { tuple } else { format!("({tuple})") };
                    self.add(format!("variant {name}{tuple}"));
                    self.fields(&kind["struct"]["fields"], &name);
                }
                self.impls(&what["impls"], path);
            }
            "trait" => {
                let bounds = signature::bounds(&what["bounds"]);
                self.add(format!("trait {path}{}{bounds}", signature::generics(&what["generics"])));
                for item in self.items(&what["items"]) {
                    self.member(item, path);
                }
            }
            "type_alias" => {
                let generics = signature::generics(&what["generics"]);
                self.add(format!("type {path}{generics} = {}", signature::ty(&what["type"])));
            }
            "function" => self.member(item, path.rsplit_once("::").map_or("", |(path, _)| path)),
            _ => self.add(format!("{kind} {path}: {}", signature::ty(&what["type"]))),
        }
    }

    fn fields(&mut self, fields: &'a Value, of: &str) {
        for field in self.items(fields) {
            let name = field["name"].as_str().unwrap_or_default();
            let ty = signature::ty(&field["inner"]["struct_field"]);
            self.add(format!("field {of}::{name}: {ty}"));
        }
    }

    fn impls(&mut self, impls: &'a Value, of: &str) {
        for item in self.items(impls) {
            let item = &item["inner"]["impl"];
            if !item["blanket_impl"].is_null() || item["is_synthetic"] == true {
                continue;
            }
            if item["trait"].is_null() {
                for member in self.items(&item["items"]) {
                    self.member(member, of);
                }
            } else if item["trait"]["path"] != "StructuralPartialEq" {
                let of_trait = signature::path(&item["trait"]);
                let target = self.items(&item["items"]).find_map(|member| {
                    (member["name"] == "Target").then(|| {
                        format!(
                            " with Target = {}",
                            signature::ty(&member["inner"]["assoc_type"]["type"])
                        )
                    })
                });
                self.add(format!("impl {of}: {of_trait}{}", target.unwrap_or_default()));
            }
        }
    }

    /// What a type or trait has.
    fn member(&mut self, member: &'a Value, of: &str) {
        let name = member["name"].as_str().unwrap_or_default();
        let inner = &member["inner"];
        if let Some(function) = inner.get("function") {
            self.add(format!("fn {of}::{name}{}", signature::function(function)));
            self.functions.push(Function { path: format!("{of}::{name}"), item: member });
        } else if let Some(constant) = inner.get("assoc_const") {
            self.add(format!("const {of}::{name}: {}", signature::ty(&constant["type"])));
        } else if let Some(ty) = inner.get("assoc_type") {
            self.add(format!("type {of}::{name}{}", signature::bounds(&ty["bounds"])));
        }
    }
}

fn is_non_exhaustive(item: &Value) -> bool {
    item["attrs"].to_string().to_lowercase().contains("non_exhaustive")
}
