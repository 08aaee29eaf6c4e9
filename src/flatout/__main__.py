import sys

if __name__ == "__main__":
    try:
        from flatout.cli.entry import main
    except KeyboardInterrupt:  # nothing has started yet
        sys.exit(130)
    main()
