import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--program", default="")


def main(options):
    return 2
