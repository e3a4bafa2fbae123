"""Writes pictures that are at hand as TFRecords that Model Garden's image classification reads.

    python -m tf_lamb.model_garden.sample_pictures --output_dir=DIR [--source=digits] [...]

Nothing is downloaded. `digits` and `photographs` come with scikit-learn; `fashion_mnist` is a
package of Debian and of Ubuntu.
"""

from tf_lamb.model_garden.samples import folder
from tf_lamb.model_garden.samples.pictures import write


def trained_by(output_dir, facts):
    """The line that trains the small ResNet on them."""
    settings = {}
    if facts["num_classes"] != 10:
        settings["model.num_classes"] = facts["num_classes"]
    if (size := facts["size"]) != 32:
        settings["model.input_size"] = f"[{size},{size},3]"
    return folder.command(
        "lamb/resnet_imagenet", "resnet_small_lamb_cpu.yaml", output_dir, **settings
    )


if __name__ == "__main__":
    folder.run(
        "sample_pictures", write, "{train_examples} training and {validation_examples} validation "
        "pictures of {num_classes} classes", trained_by,
    )  # fmt: skip
