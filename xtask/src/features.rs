//! Lists the sets of Cargo features to build of every package: none, and each alone.
//!
//! Other steps build all of them. This omits bugs that need two features on and a third one off.
//! Building all features except one would find some of those, but it took nearly half of the time.
//!
//! The list comes from `cargo metadata`, so a new feature is covered without being named here. Sets
//! that amount to the same, because one feature turns on another, are built once.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// One way to build a package.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct FeatureSet {
    pub(crate) package: String,
    pub(crate) features: Vec<String>,
}

/// The features of a package, each with what it turns on.
type Features = BTreeMap<String, Vec<String>>;

/// The sets for every package in the output of `cargo metadata --no-deps` that has features.
pub(crate) fn sets(metadata: &str) -> Result<Vec<FeatureSet>, String> {
    let metadata: Value = serde_json::from_str(metadata)
        .map_err(|error| format!("cargo metadata is no JSON: {error}"))?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata has no packages")?;
    let mut sets = Vec::new();
    for package in packages {
        let name = package["name"].as_str().ok_or("cargo metadata has a package without name")?;
        let features: Features = serde_json::from_value(package["features"].clone())
            .map_err(|error| format!("the features of {name}: {error}"))?;
        if features.is_empty() {
            continue;
        }
        sets.extend(
            combinations(&features)
                .into_iter()
                .map(|features| FeatureSet { package: name.to_owned(), features }),
        );
    }
    Ok(sets)
}

fn combinations(features: &Features) -> Vec<Vec<String>> {
    // The default set is what every other step builds.
    let names: Vec<&String> = features.keys().filter(|name| *name != "default").collect();
    let none = std::iter::once(Vec::new());
    let each = names.iter().map(|name| vec![(*name).clone()]);
    let mut seen = BTreeSet::new();
    let sets = none.chain(each);
    sets.filter(|set: &Vec<String>| seen.insert(closure(features, set))).collect()
}

/// `set` and everything it turns on in the same package.
fn closure(features: &Features, set: &[String]) -> BTreeSet<String> {
    let mut on = BTreeSet::new();
    let mut todo = set.to_vec();
    while let Some(name) = todo.pop() {
        let turned_on = features.get(&name).into_iter().flatten();
        if on.insert(name.clone()) {
            todo.extend(turned_on.cloned());
        }
    }
    on
}

#[cfg(test)]
mod tests {
    use super::*;

    const METADATA: &str = r#"{"packages": [
        {"name": "plain", "features": {}},
        {"name": "lib", "features": {
            "default": ["a"], "a": ["dep:x"], "b": [], "c": ["b", "other/c"], "d": []}}
    ]}"#;

    fn names() -> Vec<String> {
        sets(METADATA).unwrap().into_iter().map(|set| set.features.join("+")).collect()
    }

    #[test]
    fn every_feature_is_built_alone() {
        assert_eq!(names(), ["", "a", "b", "c", "d"]);
    }

    #[test]
    fn sets_that_amount_to_the_same_are_built_once() {
        let metadata = r#"{"packages": [{"name": "lib", "features": {"a": [], "b": ["a"]}}]}"#;
        let sets: Vec<_> = sets(metadata).unwrap().into_iter().map(|set| set.features).collect();
        assert_eq!(sets, [vec![], vec!["a".to_owned()], vec!["b".to_owned()]]);
    }

    #[test]
    fn nonsense_is_an_error() {
        assert!(sets("{}").is_err());
        assert!(sets("no json").is_err());
    }
}
