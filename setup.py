"""Maps `model_garden_configs` into the package; all other metadata is in pyproject.toml."""

from setuptools import find_namespace_packages, setup

setup(
    packages=[
        *find_namespace_packages(
            include=["tf_lamb", "tf_lamb.*", "tf_lamb_extras", "tf_lamb_extras.*"]
        ),
        "tf_lamb.model_garden.configs",
    ],
    package_dir={"tf_lamb.model_garden.configs": "model_garden_configs"},
    package_data={
        "tf_lamb": ["py.typed"],
        "tf_lamb_extras": ["py.typed"],
        "tf_lamb.model_garden.configs": ["*.yaml"],
    },
)
